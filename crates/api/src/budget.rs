//! What requests and answers in flight may hold, all together. Beyond it the next one is refused with `ResourceExhausted`,
//! so that a crowd of clients that ask for much and take little costs them answers, and not the member its memory.
//!
//! Counted are messages that are still coming in or being served, what long reads have gathered, and answers until the
//! connection has taken them. Little ones are not: they are bounded by their number, and counting is not free. Watches have
//! bounds of their own (`dolmen_watch`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::stats::Counter;
use crate::status::{IN_FLIGHT_EXHAUSTED, Status};

/// Less than this is not counted.
const SMALL: usize = 16 * 1024;
/// Where neither the system nor its control group says how much memory there is.
const UNKNOWN_MEMORY: u64 = 4 << 30;

/// See the module page.
pub struct Budget {
    limit: u64,
    used: AtomicU64,
    /// How often something was refused.
    pub refused: Counter,
}

/// A part of the budget, given back when dropped.
pub struct Hold {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// `limit`: bytes; 0 stands for a quarter of the memory there is.
    pub fn new(limit: u64) -> Arc<Self> {
        let limit = if limit == 0 { memory().unwrap_or(UNKNOWN_MEMORY) / 4 } else { limit };
        Arc::new(Self { limit, used: AtomicU64::new(0), refused: Counter::default() })
    }

    /// Bytes held now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Holds nothing yet.
    pub fn hold(self: &Arc<Self>) -> Hold {
        Hold { budget: self.clone(), bytes: 0 }
    }

    /// Has the pieces of an answer counted until the last of them is gone.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn keep(self: &Arc<Self>, (head, rest): (Bytes, Vec<Bytes>)) -> Result<(Bytes, Vec<Bytes>), Status> {
        let len = head.len() + rest.iter().map(Bytes::len).sum::<usize>();
        if len < SMALL {
            return Ok((head, rest));
        }
        let mut hold = self.hold();
        hold.set(len)?;
        let hold = Arc::new(hold);
        let kept = |piece| Bytes::from_owner(Kept { piece, _hold: hold.clone() });
        Ok((kept(head), rest.into_iter().map(kept).collect()))
    }
}

impl Hold {
    /// Holds `bytes` from now on.
    ///
    /// # Errors
    /// That is more than before, and there is no room for it: nothing has changed.
    pub fn set(&mut self, bytes: usize) -> Result<(), Status> {
        let bytes = if bytes < SMALL { 0 } else { bytes as u64 };
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            if self.budget.used.fetch_add(more, Ordering::Relaxed) + more > self.budget.limit {
                self.budget.used.fetch_sub(more, Ordering::Relaxed);
                self.budget.refused.add(1);
                return Err(IN_FLIGHT_EXHAUSTED);
            }
        } else if bytes < self.bytes {
            self.budget.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

struct Kept {
    piece: Bytes,
    _hold: Arc<Hold>,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

/// Bytes of memory that this process may use: its control group's, or else the machine's.
fn memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| meminfo(&text));
    let group = read("/proc/self/cgroup").and_then(|text| {
        let own = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
        let places = [
            format!("/sys/fs/cgroup{own}/memory.max"),
            "/sys/fs/cgroup/memory.max".to_owned(),
            "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
        ];
        places.iter().find_map(|path| read(path)?.trim().parse::<u64>().ok())
    });
    machine.into_iter().chain(group).min()
}

fn meminfo(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back_when_the_last_piece_goes() {
        let budget = Budget::new(100_000);
        let mut request = budget.hold();
        request.set(SMALL - 1).unwrap();
        assert_eq!(budget.used(), 0);
        request.set(40_000).unwrap();
        let (head, rest) = budget.keep((Bytes::from(vec![1; 20_000]), vec![Bytes::from(vec![2; 20_000])])).unwrap();
        assert_eq!(budget.used(), 80_000);
        assert_eq!(budget.keep((Bytes::from(vec![1; 20_001]), Vec::new())).unwrap_err(), IN_FLIGHT_EXHAUSTED);
        assert_eq!(request.set(60_001).unwrap_err().code, crate::status::Code::ResourceExhausted);
        assert_eq!((budget.used(), budget.refused.get()), (80_000, 2));
        drop((head, request));
        assert_eq!(budget.used(), 40_000);
        assert_eq!(rest[0], vec![2; 20_000]);
        drop(rest);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        assert_eq!(meminfo("MemTotal:        8051104 kB\nMemFree: 1 kB\n"), Some(8_051_104 * 1024));
        assert_eq!(meminfo("x"), None);
        assert!(memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
