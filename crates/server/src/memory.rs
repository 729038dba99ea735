//! Freed memory goes back to the system while the server rests.
//!
//! The allocator keeps what was freed with the thread it came from, and returns it when that thread next asks for pages.
//! After a burst nobody does, and the read buffers of a start or of a thousand connections would stay with the process
//! for good. So every thread that lives as long as the process says when it rests, through the [`Memory`] it was given;
//! this is what that does. The rest of short-lived threads comes along with whoever is next.

use dolmen_env::Memory;

/// What the threads of all crates are given.
pub const MEMORY: Memory = Memory::new(collect);

/// Hands free pages of the calling thread, and those that no thread has, to the system.
#[allow(unsafe_code)]
fn collect() {
    // SAFETY: takes no pointer, may be called from any thread at any time, and touches no memory that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
