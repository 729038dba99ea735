//! Answers that come in pieces.

use std::marker::PhantomData;

use prost::Message;

use crate::error::Error;

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
