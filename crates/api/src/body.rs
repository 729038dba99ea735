//! Response bodies: nothing, a few pieces and trailers, or a stream made as it is sent.
//!
//! A streaming method is one `async` function that is handed an [`Emitter`]; it runs inside the body's own poll, so in
//! the task of its HTTP/2 stream. While the connection does not take more, the body is not polled, and the function
//! stands still: back-pressure without a channel or a second task. A cancelled call drops the body and the function
//! with it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

use crate::frame;
use crate::status::Status;

/// What a handler answers with.
pub enum Body {
    Empty,
    /// One piece, then trailers (gRPC) or nothing (plain HTTP).
    One {
        data: Option<Bytes>,
        trailers: Option<HeaderMap>,
    },
    /// As `One`, of several pieces: a large answer that is not copied together.
    Many {
        data: std::vec::IntoIter<Bytes>,
        trailers: Option<HeaderMap>,
    },
    Stream(Box<StreamBody>),
}

impl Body {
    /// A plain HTTP body.
    pub fn plain(data: impl Into<Bytes>) -> Self {
        Self::One { data: Some(data.into()), trailers: None }
    }

    /// The pieces of one gRPC message, and status OK.
    pub fn ok(data: Vec<Bytes>) -> Self {
        Self::Many { data: data.into_iter(), trailers: Some(frame::trailers(None)) }
    }

    /// A gRPC message in one piece, and status OK.
    pub fn ok_one(data: Bytes) -> Self {
        Self::One { data: Some(data), trailers: Some(frame::trailers(None)) }
    }

    /// A stream of gRPC messages made by `run`, whose result becomes the status.
    pub fn stream<F>(run: impl FnOnce(Emitter) -> F) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let emitter = Emitter { queue: Arc::default() };
        let queue = emitter.queue.clone();
        Self::Stream(Box::new(StreamBody { run: Some(Box::pin(run(emitter))), queue, trailers: None }))
    }
}

type Run = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// See [`Body::stream`].
pub struct StreamBody {
    /// `None` once it has ended.
    run: Option<Run>,
    queue: Arc<Mutex<Option<Bytes>>>,
    trailers: Option<HeaderMap>,
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

impl StreamBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if let Some(run) = &mut self.run
            && let Poll::Ready(result) = run.as_mut().poll(cx)
        {
            self.run = None;
            self.trailers = Some(frame::trailers(result.as_ref().err()));
        }
        let data = self.queue.lock().take();
        if let Some(data) = data {
            return Poll::Ready(Some(Frame::data(data)));
        }
        if self.run.is_some() {
            return Poll::Pending;
        }
        Poll::Ready(self.trailers.take().map(Frame::trailers))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.get_mut() {
            Body::Empty => None,
            Body::One { data, trailers } => {
                data.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers))
            }
            Body::Many { data, trailers } => {
                data.next().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers))
            }
            Body::Stream(stream) => return stream.poll_frame(cx).map(|frame| frame.map(Ok)),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Empty => true,
            Body::One { data, trailers } => data.is_none() && trailers.is_none(),
            Body::Many { data, trailers } => data.len() == 0 && trailers.is_none(),
            Body::Stream(stream) => stream.run.is_none() && stream.trailers.is_none() && stream.queue.lock().is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Empty => SizeHint::with_exact(0),
            // A length is for plain HTTP; a gRPC message is delimited by itself.
            Body::One { data: Some(data), trailers: None } => SizeHint::with_exact(data.len() as u64),
            _ => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use http_body::Body as _;

    use super::*;
    use crate::status::{self, Code};

    fn next(body: &mut Body) -> Poll<Option<Frame<Bytes>>> {
        Pin::new(body)
            .poll_frame(&mut Context::from_waker(Waker::noop()))
            .map(|frame| frame.map(|frame| frame.unwrap()))
    }

    fn data(body: &mut Body) -> Bytes {
        match next(body) {
            Poll::Ready(Some(frame)) => frame.into_data().unwrap(),
            _ => panic!("no data"),
        }
    }

    #[test]
    fn a_stream_sends_each_piece_and_its_result_last() {
        let mut body = Body::stream(|emitter| async move {
            emitter.send(Bytes::from_static(b"a")).await;
            emitter.send(Bytes::new()).await;
            emitter.send(Bytes::from_static(b"b")).await;
            Err(status::NO_LEADER)
        });
        assert_eq!(data(&mut body), "a");
        assert_eq!(data(&mut body), "b");
        let Poll::Ready(Some(frame)) = next(&mut body) else { panic!("no trailers") };
        assert_eq!(frame.into_trailers().unwrap()["grpc-status"], Code::Unavailable.digits());
        assert!(body.is_end_stream());
        assert!(matches!(next(&mut body), Poll::Ready(None)));
    }

    #[test]
    fn a_stream_that_waits_is_pending() {
        let mut body = Body::stream(|_| std::future::pending());
        assert!(next(&mut body).is_pending());
        assert!(!body.is_end_stream());
    }

    #[test]
    fn pieces_come_in_order_and_trailers_last() {
        let mut body = Body::ok(vec!["a".into(), "b".into()]);
        assert_eq!(data(&mut body), "a");
        assert_eq!(data(&mut body), "b");
        assert!(!body.is_end_stream());
        let Poll::Ready(Some(frame)) = next(&mut body) else { panic!("no trailers") };
        assert!(frame.is_trailers());
        assert!(body.is_end_stream());
    }
}
