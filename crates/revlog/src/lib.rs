//! The segmented revision log: every revision of every key, on disk, in revision order.

#![forbid(unsafe_code)]

mod error;
mod log;
mod options;
mod record;
mod tables;

pub use error::Error;
pub use log::*;
pub use options::{Hint, Options};
pub use record::{Batch, NewRecord, RecordMeta};
pub use tables::{Table, TableOp, Tables};
