//! Messages that come and go in pieces.

use std::marker::PhantomData;

use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;

use crate::error::{Error, code};

/// Messages of one call, in order. Dropping it ends the call.
pub struct Streaming<T> {
    message: PhantomData<fn() -> T>,
}

impl<T: Message + Default> Streaming<T> {
    /// The next message; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        None
    }
}

/// The sending half of a call with streams both ways. Dropping it closes that half.
pub(crate) struct Requests<T> {
    frames: mpsc::UnboundedSender<Bytes>,
    message: PhantomData<fn(T)>,
}

impl<T: Message> Requests<T> {
    pub fn send(&self, message: &T) -> Result<(), Error> {
        let sent = self.frames.send(message.encode_to_vec().into());
        sent.map_err(|_| Error::status(code::UNAVAILABLE, "the stream is closed"))
    }
}
