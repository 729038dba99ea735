//! The outside, as arguments: time, randomness and disk reach the core only through this crate, so that the simulator
//! can replace all three and replay a run from one seed.
//!
//! * [`Disk`] and [`DiskFile`]: what the log and the store need of a file system, and no more. [`RealDisk`] is the
//!   operating system; [`SimDisk`] keeps synced and unsynced bytes apart, loses power in every shape a real disk does,
//!   and fails on demand.
//! * [`Mono`]: a monotonic instant in nanoseconds, handed into the core by whoever drives it. The core never asks.
//! * [`fault`]: what the process says when a mapped file breaks under it.
//! * [`Memory`]: how a thread tells the allocator that it rests.
//! * [`Rng`]: a small seeded generator; the driver seeds it from the operating system, the simulator from its seed.

mod clock;
mod disk;
pub mod fault;
mod memory;
mod real;
mod rng;
mod shortage;
mod sim_disk;
mod sim_image;

pub use clock::RealClock;
pub use disk::{Disk, DiskFile, DiskLock, OpenMode};
pub use memory::{Memory, Rests};
pub use real::RealDisk;
pub use rng::Rng;
pub use shortage::is_shortage;
pub use sim_disk::{Fault, PowerLoss, SimDisk};

/// A monotonic instant: nanoseconds since an arbitrary start of the process. Never wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

impl Mono {
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Nanoseconds from `earlier` to `self`, 0 when `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
