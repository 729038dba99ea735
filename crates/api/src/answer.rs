//! What handlers answer with: an encoded message with nothing around it yet.
//!
//! gRPC puts a prefix before a message, the JSON gateway will turn it into text; neither is a handler's affair. So that the
//! prefix costs neither a copy nor a piece of its own, an answer is built behind a few bytes of room.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::body::Emitter;
use crate::budget::Budget;
use crate::frame::{PREFIX, prefix};
use crate::stats::CallGuard;
use crate::status::{Code, Status};

/// One encoded message.
pub struct Answer {
    /// [`PREFIX`] bytes of room, then the message or its beginning.
    head: BytesMut,
    /// What follows, where the message lies in several pieces.
    rest: Vec<Bytes>,
}

impl Answer {
    /// Encodes a message.
    pub fn new(message: &impl Message) -> Self {
        let mut head = Self::room(message.encoded_len());
        message.encode_raw(&mut head);
        Self { head, rest: Vec::new() }
    }

    /// A buffer for the first `len` bytes of a message, to be filled and given to [`Answer::of`].
    pub fn room(len: usize) -> BytesMut {
        let mut head = BytesMut::with_capacity(PREFIX + len);
        head.put_bytes(0, PREFIX);
        head
    }

    /// `head` as [`Answer::room`] made it, filled; `rest` as it lies.
    pub fn of(head: BytesMut, rest: Vec<Bytes>) -> Self {
        Self { head, rest }
    }

    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.head.len() - PREFIX + self.rest.iter().map(Bytes::len).sum::<usize>()
    }

    /// The message as gRPC sends it: its first piece, with the prefix, and the others.
    pub fn frame(mut self) -> (Bytes, Vec<Bytes>) {
        let prefix = prefix(self.len());
        self.head[..PREFIX].copy_from_slice(&prefix);
        (self.head.freeze(), self.rest)
    }

    /// The message, copied together.
    #[cfg(test)]
    pub fn message(&self) -> Vec<u8> {
        [&self.head[PREFIX..]].into_iter().chain(self.rest.iter().map(|piece| &piece[..])).collect::<Vec<_>>().concat()
    }

    /// Into how many pieces the message is cut, and where the second of them lies.
    #[cfg(test)]
    pub fn rest(&self) -> &[Bytes] {
        &self.rest
    }
}

/// Where the answers of a streaming call go: each is framed, counted, and sent when the connection has room.
pub struct Answers {
    emitter: Emitter,
    counted: CallGuard,
    budget: Arc<Budget>,
}

impl Answers {
    pub fn new(emitter: Emitter, counted: CallGuard, budget: Arc<Budget>) -> Self {
        Self { emitter, counted, budget }
    }

    /// Sends one message and waits until the stream can take more.
    ///
    /// # Errors
    /// What is in flight holds too much already.
    pub async fn send(&self, answer: Answer) -> Result<(), Status> {
        let len = PREFIX + answer.len();
        let (head, rest) = self.budget.keep(answer.frame())?;
        self.counted.sent(1, len as u64);
        self.emitter.send(head).await;
        for piece in rest {
            self.emitter.send(piece).await;
        }
        Ok(())
    }

    /// Sends bytes that are framed already; [`Answers::sent`] counts what they hold.
    pub async fn send_framed(&self, piece: Bytes) {
        self.emitter.send(piece).await;
    }

    /// Counts messages that went by [`Answers::send_framed`].
    pub fn sent(&self, messages: u64, bytes: u64) {
        self.counted.sent(messages, bytes);
    }

    /// Counts a message of the client, with its prefix.
    pub fn received(&self, bytes: u64) {
        self.counted.received(bytes);
    }

    /// Counts the end of the call.
    pub fn end(self, code: Code) {
        self.counted.end(code);
    }
}

#[cfg(test)]
mod tests {
    use dolmen_proto::etcdserverpb::LeaseKeepAliveRequest;

    use super::*;

    #[test]
    fn a_message_is_framed_in_the_room_before_it() {
        let answer = Answer::new(&LeaseKeepAliveRequest { id: 300 });
        assert_eq!((answer.len(), answer.message()), (3, vec![8, 0xac, 2]));
        let at = answer.head.as_ptr();
        let (framed, rest) = answer.frame();
        assert_eq!(framed.as_ref(), [0, 0, 0, 0, 3, 8, 0xac, 2]);
        assert_eq!((framed.as_ptr(), rest.len()), (at, 0));
    }

    #[test]
    fn the_prefix_counts_all_pieces() {
        let mut head = Answer::room(2);
        head.put_slice(b"ab");
        let answer = Answer::of(head, vec!["cde".into(), "f".into()]);
        assert_eq!(answer.message(), b"abcdef");
        assert_eq!(answer.frame().0.as_ref(), [0, 0, 0, 0, 6, b'a', b'b']);
    }
}
