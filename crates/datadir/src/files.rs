//! Files of a [`Disk`] as the other crates want them: read at any place, written in a row, looked at as buckets.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use dolmen_bolt::{ReadAt, Source};
use dolmen_env::{Disk, DiskFile};

/// A directory is given to the name it is meant for only when it is whole. Until then it has this one.
pub(crate) fn in_the_making(target: &Path) -> PathBuf {
    with_suffix(target, ".restoring")
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Whether `path` is there and has something in it, or is no directory that can be looked into.
pub(crate) fn is_taken(disk: &dyn Disk, path: &Path) -> bool {
    match disk.exists(path) {
        Ok(false) => false,
        Ok(true) => disk.read_dir(path).map_or(true, |names| !names.is_empty()),
        Err(_) => true,
    }
}

/// A file as bbolt's reader takes it.
pub(crate) struct FileReader(pub Box<dyn DiskFile>);

impl ReadAt for FileReader {
    fn byte_len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn bytes_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(bytes.into())
    }
}

/// A file written from its first byte to its last, a MiB at a time.
pub(crate) struct FileWriter<'a> {
    file: &'a dyn DiskFile,
    offset: u64,
    buffer: Vec<u8>,
    written: &'a mut dyn FnMut(u64),
}

const BUFFER: usize = 1 << 20;

impl<'a> FileWriter<'a> {
    /// `written` is told the bytes written so far.
    pub(crate) fn new(file: &'a dyn DiskFile, written: &'a mut dyn FnMut(u64)) -> Self {
        Self { file, offset: 0, buffer: Vec::with_capacity(BUFFER), written }
    }
}

impl Write for FileWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        if bytes.len() >= BUFFER {
            self.file.write_all_at(bytes, self.offset)?;
            self.offset += bytes.len() as u64;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.offset)?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        (self.written)(self.offset);
        Ok(())
    }
}

/// A source with some of its small buckets replaced.
pub(crate) struct Overlay<'a> {
    pub under: &'a dyn Source,
    pub replaced: BTreeMap<Bytes, BTreeMap<Bytes, Bytes>>,
}

impl Source for Overlay<'_> {
    fn buckets(&self) -> Vec<Bytes> {
        let mut names = self.under.buckets();
        names.extend(self.replaced.keys().cloned());
        names.sort_unstable();
        names.dedup();
        names
    }

    fn for_each(&self, bucket: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
        match self.replaced.get(bucket) {
            Some(pairs) => pairs.iter().try_for_each(|(key, value)| visit(key, value)),
            None => self.under.for_each(bucket, visit),
        }
    }

    fn sizes(&self, bucket: &[u8], visit: &mut dyn FnMut(usize, usize) -> io::Result<()>) -> io::Result<()> {
        match self.replaced.get(bucket) {
            Some(pairs) => pairs.iter().try_for_each(|(key, value)| visit(key.len(), value.len())),
            None => self.under.sizes(bucket, visit),
        }
    }
}

/// All pairs of a small bucket; none when there is no such bucket.
pub(crate) fn bucket(source: &dyn Source, name: &[u8]) -> io::Result<BTreeMap<Bytes, Bytes>> {
    let mut pairs = BTreeMap::new();
    if source.buckets().iter().any(|found| found == name) {
        source.for_each(name, &mut |key, value| {
            pairs.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            Ok(())
        })?;
    }
    Ok(pairs)
}
