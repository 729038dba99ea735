//! Freed memory goes back to the system while the server rests.
//!
//! The allocator keeps what was freed with the thread it came from, and returns it when that thread next asks for pages.
//! After a burst nobody does, and the read buffers of a start or of a thousand connections would stay with the process
//! for good. So every thread that lives as long as the process says when it rests, through the [`Memory`] it was given;
//! this is what that does. The rest of short-lived threads comes along with whoever is next.

use dolmen_env::Memory;

/// What the threads of all crates are given.
pub const MEMORY: Memory = Memory::new(collect);

/// Keeps the kernel from making huge pages of this process's memory, of its own accord or the allocator's.
///
/// A connection's buffers, an answer that waits for its reader, a message of which the first bytes have come: each is a
/// little memory in a large reservation, and a huge page makes all of it resident (measured: a hundred times as much).
pub fn refuse_huge_pages() {
    // A kernel that cannot be told has none.
    let _unknown = rustix::thread::disable_transparent_huge_pages(true);
}

/// Hands free pages of the calling thread, and those that no thread has, to the system.
#[allow(unsafe_code)]
fn collect() {
    // SAFETY: takes no pointer, may be called from any thread at any time, and touches no memory that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
