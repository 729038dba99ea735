//! nghttp2's memory comes from the program's allocator, so that one knows of all memory and gives it back.
//!
//! C frees without saying how much; a header before each block says it.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::ffi::c_void;
use std::ptr::null_mut;

use libnghttp2_sys as sys;

/// Bytes of the header, and the alignment of what follows it: that of C's `max_align_t`.
const HEADER: usize = 16;

pub fn functions() -> sys::nghttp2_mem {
    sys::nghttp2_mem {
        mem_user_data: null_mut(),
        malloc: Some(c_malloc),
        free: Some(c_free),
        calloc: Some(c_calloc),
        realloc: Some(c_realloc),
    }
}

/// The layout of a block of `size` bytes with its header; `None` when there is no such block.
fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEADER)?, HEADER).ok()
}

/// Writes the size into a fresh block and returns what C gets.
///
/// # Safety
/// `block` is null, or was allocated by [`layout`] of `size`.
unsafe fn label(block: *mut u8, size: usize) -> *mut c_void {
    if block.is_null() {
        return null_mut();
    }
    // SAFETY: the block is aligned for a `usize` and has room for one before its `size` bytes.
    unsafe {
        block.cast::<usize>().write(size);
        block.add(HEADER).cast()
    }
}

/// The block of a pointer that C was given, and its layout.
///
/// # Safety
/// `ptr` came from [`label`] and is not freed.
unsafe fn block(ptr: *mut c_void) -> (*mut u8, Layout) {
    // SAFETY: `label` left the size there; it had a layout then.
    unsafe {
        let block = ptr.cast::<u8>().sub(HEADER);
        let size = block.cast::<usize>().read();
        (block, Layout::from_size_align_unchecked(size + HEADER, HEADER))
    }
}

unsafe extern "C" fn c_malloc(size: usize, _: *mut c_void) -> *mut c_void {
    let Some(layout) = layout(size) else { return null_mut() };
    // SAFETY: no layout is empty, as it has a header.
    unsafe { label(alloc(layout), size) }
}

unsafe extern "C" fn c_calloc(count: usize, each: usize, _: *mut c_void) -> *mut c_void {
    let Some(size) = count.checked_mul(each) else { return null_mut() };
    let Some(layout) = layout(size) else { return null_mut() };
    // SAFETY: as above.
    unsafe { label(alloc_zeroed(layout), size) }
}

unsafe extern "C" fn c_free(ptr: *mut c_void, _: *mut c_void) {
    if ptr.is_null() {
        return;
    }
    // SAFETY: nghttp2 frees what it got from here, once.
    unsafe {
        let (block, layout) = block(ptr);
        dealloc(block, layout);
    }
}

unsafe extern "C" fn c_realloc(ptr: *mut c_void, size: usize, user: *mut c_void) -> *mut c_void {
    if ptr.is_null() {
        // SAFETY: as `c_malloc` is called by C.
        return unsafe { c_malloc(size, user) };
    }
    let Some(new) = layout(size) else { return null_mut() };
    // SAFETY: nghttp2 passes what it got from here; the new size has a layout.
    unsafe {
        let (block, layout) = block(ptr);
        label(realloc(block, layout, new.size()), size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_bytes_when_they_grow_and_shrink() {
        // SAFETY: used as C does; only bytes within the blocks are touched.
        unsafe {
            let user = null_mut();
            let ptr = c_realloc(null_mut(), 3, user);
            assert_eq!(ptr.align_offset(HEADER), 0);
            ptr.cast::<[u8; 3]>().write([1, 2, 3]);
            let ptr = c_realloc(ptr, 100_000, user);
            assert_eq!(ptr.cast::<[u8; 3]>().read(), [1, 2, 3]);
            let ptr = c_realloc(ptr, 2, user);
            assert_eq!(ptr.cast::<[u8; 2]>().read(), [1, 2]);
            c_free(ptr, user);
            let zeroed = c_calloc(10, 10, user);
            assert_eq!(zeroed.cast::<[u8; 100]>().read(), [0; 100]);
            c_free(zeroed, user);
            c_free(null_mut(), user);
            assert!(c_calloc(usize::MAX, 2, user).is_null() && c_malloc(usize::MAX, user).is_null());
        }
    }
}
