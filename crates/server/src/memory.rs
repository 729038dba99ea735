//! Freed memory goes back to the system while the server rests.
//!
//! The allocator returns what was freed a while later, but only when some thread next asks it for pages. After a burst
//! nobody does, and the read buffers of a start or of a thousand connections would stay with the process for good. So a
//! thread of its own asks from time to time.

use std::time::Duration;

/// What is freed and used again within this time costs no page faults on the way.
const INTERVAL: Duration = Duration::from_secs(2);

/// Starts the thread. It runs as long as the process.
pub fn give_back() -> std::io::Result<()> {
    let rounds = || {
        loop {
            std::thread::sleep(INTERVAL);
            collect();
        }
    };
    std::thread::Builder::new().name("memory".into()).spawn(rounds).map(|_| ())
}

/// Hands free pages of every thread back to the system.
#[allow(unsafe_code)]
fn collect() {
    // SAFETY: takes no pointer, may be called from any thread at any time, and touches no memory that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
