//! Bodies: of requests, as they come; of answers, as they are made.
//!
//! A streaming method is one `async` function that is handed an [`Emitter`]; it is polled by its connection, with the
//! others. While the connection has not sent what it was handed, it is not polled and stands still: back-pressure without a
//! channel or a task. A cancelled call drops the body and the function with it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

use crate::status::Status;

/// The body of a request.
pub enum RequestBody {
    /// All of it, which most calls send at once.
    Whole(BytesMut),
    Coming(Arc<Inbox>),
}

impl RequestBody {
    /// What has come since the last time; `None` at the end.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<BytesMut>> {
        match self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(std::mem::take(bytes))),
            Self::Coming(inbox) => inbox.poll_take(cx),
        }
    }

    /// Whether it is known already that nothing more will come.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Coming(inbox) => inbox.is_over(),
        }
    }
}

/// What has come of a body and was not read. Holds as much as the peer may send ahead; it may send more when the reader has
/// taken this.
#[derive(Default)]
pub struct Inbox(Mutex<Coming>);

#[derive(Default)]
struct Coming {
    bytes: BytesMut,
    ended: bool,
    /// Bytes that the reader has taken and the connection has not been told of.
    taken: usize,
    reader: Option<Waker>,
}

impl Inbox {
    /// More has come; `ended`: and that was all.
    pub fn put(&self, more: BytesMut, ended: bool) {
        let mut coming = self.0.lock();
        if coming.bytes.is_empty() {
            coming.bytes = more;
        } else {
            coming.bytes.extend_from_slice(&more);
        }
        coming.ended |= ended;
        let reader = coming.reader.take();
        drop(coming);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Bytes taken by the reader since the last time.
    pub fn taken(&self) -> usize {
        std::mem::take(&mut self.0.lock().taken)
    }

    /// As [`Inbox::taken`], with what nobody will take: the reader is gone.
    pub fn abandon(&self) -> usize {
        let mut coming = self.0.lock();
        let left = std::mem::take(&mut coming.bytes).len();
        std::mem::take(&mut coming.taken) + left
    }

    fn is_over(&self) -> bool {
        let coming = self.0.lock();
        coming.ended && coming.bytes.is_empty()
    }

    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<BytesMut>> {
        let mut coming = self.0.lock();
        if !coming.bytes.is_empty() {
            coming.taken += coming.bytes.len();
            return Poll::Ready(Some(std::mem::take(&mut coming.bytes)));
        }
        if coming.ended {
            return Poll::Ready(None);
        }
        coming.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// What a request is answered with.
pub enum Body {
    Empty,
    /// A page.
    Plain(Bytes),
    /// A gRPC message and status OK.
    One(Bytes),
    /// As `One`, of several pieces: a large answer that is not copied together.
    Many(Vec<Bytes>),
    /// A gRPC status and nothing else.
    Refused(Status),
    /// gRPC messages, made as they are sent.
    Stream(Box<StreamBody>),
}

impl Body {
    /// A plain HTTP body.
    pub fn plain(data: impl Into<Bytes>) -> Self {
        Self::Plain(data.into())
    }

    /// The pieces of one gRPC message, and status OK.
    pub fn ok(data: Vec<Bytes>) -> Self {
        Self::Many(data)
    }

    /// A gRPC message in one piece, and status OK.
    pub fn ok_one(data: Bytes) -> Self {
        Self::One(data)
    }

    /// A stream of gRPC messages made by `run`, whose result becomes the status.
    pub fn stream<F>(run: impl FnOnce(Emitter) -> F) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let emitter = Emitter { queue: Arc::default() };
        let queue = emitter.queue.clone();
        Self::Stream(Box::new(StreamBody { run: Some(Box::pin(run(emitter))), queue, status: None }))
    }
}

type Run = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// See [`Body::stream`].
pub struct StreamBody {
    /// `None` once it has ended.
    run: Option<Run>,
    queue: Arc<Mutex<Option<Bytes>>>,
    /// How it ended, unless well.
    status: Option<Status>,
}

/// The sending end of a [`Body::stream`].
#[derive(Clone)]
pub struct Emitter {
    queue: Arc<Mutex<Option<Bytes>>>,
}

impl Emitter {
    /// Hands over framed messages (one or several, whole) and waits until the stream can take more.
    pub async fn send(&self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        *self.queue.lock() = Some(data);
        // Polled again only after the body has been polled again, so after the piece was taken.
        std::future::poll_fn(|_| if self.queue.lock().is_none() { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// What comes next of a [`StreamBody`].
#[derive(Debug)]
pub enum Next {
    Piece(Bytes),
    /// The end, with its status unless that is OK.
    End(Option<Status>),
}

impl StreamBody {
    /// Goes on with the stream. Not to be called again after its end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        if let Some(run) = &mut self.run
            && let Poll::Ready(result) = run.as_mut().poll(cx)
        {
            self.run = None;
            self.status = result.err();
        }
        let piece = self.queue.lock().take();
        match piece {
            Some(piece) => Poll::Ready(Next::Piece(piece)),
            None if self.run.is_some() => Poll::Pending,
            None => Poll::Ready(Next::End(self.status.take())),
        }
    }
}

/// Over HTTP/1, which carries pages only.
impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match std::mem::replace(self.get_mut(), Body::Empty) {
            Body::Plain(data) if !data.is_empty() => Poll::Ready(Some(Ok(Frame::data(data)))),
            _ => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        !matches!(self, Body::Plain(data) if !data.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Plain(data) => SizeHint::with_exact(data.len() as u64),
            _ => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status;

    fn next(body: &mut StreamBody) -> Poll<Next> {
        body.poll_next(&mut Context::from_waker(Waker::noop()))
    }

    fn stream<F>(run: impl FnOnce(Emitter) -> F) -> Box<StreamBody>
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        match Body::stream(run) {
            Body::Stream(stream) => stream,
            _ => unreachable!("a stream was asked for"),
        }
    }

    #[test]
    fn a_stream_sends_each_piece_and_its_result_last() {
        let mut body = stream(|emitter| async move {
            emitter.send(Bytes::from_static(b"a")).await;
            emitter.send(Bytes::new()).await;
            emitter.send(Bytes::from_static(b"b")).await;
            Err(status::NO_LEADER)
        });
        for expected in ["a", "b"] {
            assert!(matches!(next(&mut body), Poll::Ready(Next::Piece(piece)) if piece == expected));
        }
        assert!(matches!(next(&mut body), Poll::Ready(Next::End(Some(status))) if status == status::NO_LEADER));
    }

    #[test]
    fn a_stream_that_waits_is_pending() {
        assert!(next(&mut stream(|_| std::future::pending())).is_pending());
    }

    #[test]
    fn what_comes_is_read_once_counted_and_ended() {
        let inbox = Arc::new(Inbox::default());
        let mut body = RequestBody::Coming(inbox.clone());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(body.poll_data(&mut cx).is_pending());
        inbox.put(BytesMut::from("ab"), false);
        inbox.put(BytesMut::from("c"), true);
        assert_eq!((inbox.taken(), body.is_over()), (0, false));
        assert_eq!(body.poll_data(&mut cx), Poll::Ready(Some(BytesMut::from("abc"))));
        assert_eq!((inbox.taken(), inbox.taken(), body.is_over()), (3, 0, true));
        assert_eq!(body.poll_data(&mut cx), Poll::Ready(None));
        inbox.put(BytesMut::from("late"), true);
        assert_eq!((inbox.abandon(), inbox.abandon()), (4, 0));
    }
}
