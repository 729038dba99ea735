//! Messages that come and go in pieces.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::error::{Error, code};
use crate::pool::Pool;
use crate::wire::{Frames, decode, frame};

/// The head of an answer that is still to come.
pub(crate) type Opening = Pin<Box<dyn Future<Output = Result<http::Response<Incoming>, Error>> + Send>>;

/// Messages of one call, in order. Dropping it ends the call.
pub struct Streaming<T> {
    state: State,
    /// Bytes of a message.
    limit: usize,
    deadline: Option<Instant>,
    /// The first message, where it was fetched to see whether the call stands.
    first: Option<Bytes>,
    /// Connections live as long as their pool.
    _pool: Arc<Pool>,
    message: PhantomData<fn() -> T>,
}

enum State {
    Opening(Opening),
    Open(Box<Frames>),
    Ended,
}

impl<T: Message + Default> Streaming<T> {
    pub(crate) fn new(pool: Arc<Pool>, opening: Opening, limit: usize, deadline: Option<Instant>) -> Streaming<T> {
        let state = State::Opening(opening);
        Streaming { state, limit, deadline, first: None, _pool: pool, message: PhantomData }
    }

    /// The next message; `None` after the last. After an error, `None` as well. It may be dropped while waiting, and called
    /// again, without losing anything.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        let bytes = match self.first.take() {
            Some(first) => Some(first),
            None => match self.next_bytes().await {
                Ok(bytes) => bytes,
                Err(error) => return Some(Err(error)),
            },
        };
        bytes.map(|bytes| decode(bytes).inspect_err(|_| self.state = State::Ended))
    }

    /// Waits for the first message and keeps it for [`Streaming::next`], so that a call that fails at once fails here.
    pub(crate) async fn begin(&mut self) -> Result<(), Error> {
        self.first = self.next_bytes().await?;
        Ok(())
    }

    async fn next_bytes(&mut self) -> Result<Option<Bytes>, Error> {
        let next = match self.deadline {
            None => self.advance().await,
            Some(deadline) => match tokio::time::timeout_at(deadline, self.advance()).await {
                Ok(next) => next,
                Err(_) => Err(Error::deadline()),
            },
        };
        if !matches!(next, Ok(Some(_))) {
            self.state = State::Ended;
        }
        next
    }

    async fn advance(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            match &mut self.state {
                State::Opening(opening) => {
                    let response = opening.await?;
                    self.state = State::Open(Box::new(Frames::new(response, self.limit)?));
                }
                State::Open(frames) => return frames.next().await,
                State::Ended => return Ok(None),
            }
        }
    }
}

/// The sending half of a call with streams both ways. Dropping it closes that half.
pub(crate) struct Requests<T> {
    frames: mpsc::UnboundedSender<Bytes>,
    /// Bytes of a message.
    limit: usize,
    message: PhantomData<fn(T)>,
}

impl<T: Message> Requests<T> {
    pub fn new(frames: mpsc::UnboundedSender<Bytes>, limit: usize) -> Requests<T> {
        Requests { frames, limit, message: PhantomData }
    }

    /// Queues a message. An error says that the stream is closed, or the message too large.
    pub fn send(&self, message: &T) -> Result<(), Error> {
        let sent = self.frames.send(frame(message, self.limit)?);
        sent.map_err(|_| Error::status(code::UNAVAILABLE, "the stream is closed"))
    }
}
