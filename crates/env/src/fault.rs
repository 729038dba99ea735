//! What happens when a mapped file is cut short, or its disk cannot be read, while somebody reads the mapping: the kernel
//! sends SIGBUS, which ends a process without a word. [`end_with_words`] makes it say which file, and end with a code of its
//! own.
//!
//! Nothing is known of the moment in which a handler runs, so it does nothing but a few system calls on a buffer of its own:
//! no allocation, no lock, no formatting. The kernel itself knows which file lies at an address: `/proc/self/maps`.

use std::sync::atomic::{AtomicI32, Ordering};

static EXIT_CODE: AtomicI32 = AtomicI32::new(1);

/// From now on SIGBUS writes the file that was being read to standard error and ends the process with `exit_code`.
pub fn end_with_words(exit_code: u8) {
    EXIT_CODE.store(exit_code.into(), Ordering::Relaxed);
    // SAFETY: an all-zero `sigaction` is a valid one, filled in below; the handler has the signature that SA_SIGINFO asks for,
    // lives as long as the program, and calls nothing that is not async-signal-safe. SA_RESETHAND: should it fault itself,
    // the process ends as it would have without it.
    #[allow(unsafe_code)]
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
        // Fails for signals that do not exist, and this one does.
        let _always = libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

#[allow(unsafe_code)]
extern "C" fn on_bus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands over a valid `siginfo_t`, whose address is set for SIGBUS; all calls are async-signal-safe
    // (open, read, write, _exit), on buffers of this function.
    unsafe {
        let address = (*info).si_addr() as usize;
        say(b"fatal: a file in use was cut short, or its disk cannot be read (SIGBUS): ");
        let mut lines = Maps::new(address);
        let maps = libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let mut buf = [0u8; 4096];
        let mut named = false;
        while maps >= 0 && !named {
            let read = libc::read(maps, buf.as_mut_ptr().cast(), buf.len());
            if read <= 0 {
                break;
            }
            for byte in &buf[..read as usize] {
                if lines.push(*byte) {
                    say(lines.name());
                    named = true;
                    break;
                }
            }
        }
        if !named {
            say(b"of no name that could be found");
        }
        say(b"; check the disk and who else writes to the data directory, then restore the directory from a backup, or remove \
              the member from its cluster and add it again with an empty one\n");
        libc::_exit(EXIT_CODE.load(Ordering::Relaxed));
    }
}

#[allow(unsafe_code)]
fn say(bytes: &[u8]) {
    // SAFETY: the pointer and the length are those of one slice. A standard error that takes nothing cannot be helped.
    let _unheard = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

/// Reads the lines of `/proc/<pid>/maps` byte by byte, without memory but its own:
///
/// ```text
/// 7f0c8a000000-7f0c8a400000 r--s 00000000 fe:00 1234      /data/member/store/0000.seg
/// ```
struct Maps {
    address: usize,
    field: usize,
    /// Whether the byte before this one was a space.
    in_gap: bool,
    number: usize,
    low: usize,
    holds: bool,
    name: [u8; 1024],
    len: usize,
}

const NAME_FIELD: usize = 5;

impl Maps {
    fn new(address: usize) -> Self {
        Self { address, field: 0, in_gap: false, number: 0, low: 0, holds: false, name: [0; 1024], len: 0 }
    }

    /// True at the end of the line that holds the address.
    fn push(&mut self, byte: u8) -> bool {
        if byte == b'\n' {
            if self.holds && self.len > 0 {
                return true;
            }
            *self = Self::new(self.address);
            return false;
        }
        if self.field < NAME_FIELD && byte == b' ' {
            if self.field == 0 && !self.in_gap {
                self.holds = (self.low..self.number).contains(&self.address);
            }
            self.in_gap = true;
            return false;
        }
        if self.in_gap {
            self.in_gap = false;
            self.field += 1;
        }
        match self.field {
            0 if byte == b'-' => (self.low, self.number) = (self.number, 0),
            0 => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0) as usize;
                self.number = self.number << 4 | digit;
            }
            NAME_FIELD if self.len < self.name.len() => {
                self.name[self.len] = byte;
                self.len += 1;
            }
            _ => {}
        }
        false
    }

    fn name(&self) -> &[u8] {
        &self.name[..self.len]
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the file is one that somebody else writes")]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::{Disk, RealDisk};

    fn find(text: &str, address: usize) -> Option<String> {
        let mut lines = Maps::new(address);
        let found = text.bytes().any(|byte| lines.push(byte));
        found.then(|| String::from_utf8_lossy(lines.name()).into_owned())
    }

    #[test]
    fn a_mapping_is_found_by_an_address_in_it() {
        let text = "5600-5700 r--p 00000000 fe:00 17      /bin/x\n\
            7000-7100 rw-p 00000000 00:00 0 \n\
            7100-7200 r--s 00001000 fe:00 1234                       /data/a b/0000.seg\n";
        assert_eq!(find(text, 0x5600).as_deref(), Some("/bin/x"));
        assert_eq!(find(text, 0x7180).as_deref(), Some("/data/a b/0000.seg"));
        assert_eq!(find(text, 0x7000), None);
        assert_eq!(find(text, 0x7200), None);
    }

    /// Names the file that the child of the next test reads.
    const FILE: &str = "DOLMEN_TEST_CUT_FILE";

    fn read_cut_file(path: &Path) -> ! {
        end_with_words(65);
        let file = RealDisk.open(path, crate::OpenMode::Read).unwrap();
        let map = file.map(file.len().unwrap()).unwrap();
        std::fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
        panic!("read {} behind the end of a file", std::hint::black_box(map[4096]));
    }

    #[test]
    fn a_file_cut_short_under_its_mapping_is_named() {
        if let Ok(file) = std::env::var(FILE) {
            read_cut_file(Path::new(&file));
        }
        let file = std::env::temp_dir().join(format!("dolmen-cut-{}.seg", std::process::id()));
        std::fs::write(&file, vec![7; 1 << 20]).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fault::tests::a_file_cut_short_under_its_mapping_is_named", "--nocapture"])
            .env(FILE, &file)
            .output()
            .unwrap();
        std::fs::remove_file(&file).unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.code(), Some(65), "{said}");
        assert!(said.contains(&*file.to_string_lossy()), "{said}");
    }
}
