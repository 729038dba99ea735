//! The session: nghttp2's, what its callbacks write to, and the calls into it.
//!
//! Ownership is plain. A [`Session`] owns nghttp2's object and one [`State`]; nghttp2 keeps a pointer to the state and passes
//! it to every callback. A callback runs inside a call into nghttp2 only, and no reference to the state is held across such a
//! call, so at each moment there is one reference at most.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use libnghttp2_sys as sys;

use crate::head::Head;
use crate::memory;
use crate::nuisance::Patience;
use crate::streams::{Field, Stream, StreamId, Streams, Trailers};

/// Bytes after which [`Session::send`] returns.
pub const SEND_AT_ONCE: usize = 64 << 10;
/// Frames that continue a header block; each has 16 KiB at most.
pub const CONTINUATIONS: usize = 8;
/// Answers to pings and settings that wait to be sent: more than there are frames in twice 64 KiB.
const UNSENT_ACKS: usize = 20_000;
/// Settings in one frame.
const SETTINGS: usize = 64;
/// A request whose fields are so many times as long as allowed is meant to hurt.
const FAR_TOO_LARGE: usize = 4;
/// nghttp2's own counts of such frames; [`crate::NUISANCES`] is stricter where it matters, and lenient with what only
/// costs the time to skip it (priorities, frames of extensions).
const UNCOUNTED: (u64, u64) = (1 << 30, 1 << 30);
/// What RFC 9218 gives to a stream for which nobody asks for more or less.
const USUAL_URGENCY: u32 = 3;
/// Bytes that go into one frame of data.
const ONE_FRAME: usize = 16 << 10;
const NO_FLAGS: u8 = sys::NGHTTP2_FLAG_NONE as u8;

/// What a peer may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams open at a time.
    pub streams: u32,
    /// Bytes of a request's fields, as HTTP/2 counts them.
    pub header_bytes: u32,
    /// Bytes sent ahead on one stream.
    pub stream_window: u32,
    /// Bytes sent ahead on all streams together.
    pub connection_window: u32,
}

/// The connection is over; [`Error::farewell`] says so to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(c_int);

impl Error {
    /// The frame (GOAWAY) to be sent before closing, behind whatever was sent before.
    pub fn farewell(self) -> [u8; 17] {
        let code = match self.0 {
            sys::NGHTTP2_ERR_BAD_CLIENT_MAGIC => sys::NGHTTP2_PROTOCOL_ERROR,
            sys::NGHTTP2_ERR_NOMEM => sys::NGHTTP2_INTERNAL_ERROR,
            // Floods, by nghttp2's count or ours.
            _ => sys::NGHTTP2_ENHANCE_YOUR_CALM,
        };
        let mut frame = [0, 0, 8, sys::NGHTTP2_GOAWAY as u8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        frame[13..].copy_from_slice(&code.to_be_bytes());
        frame
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: the function takes any number and returns a static, terminated string.
        let text = unsafe { std::ffi::CStr::from_ptr(sys::nghttp2_strerror(self.0)) };
        f.write_str(&text.to_string_lossy())
    }
}

impl std::error::Error for Error {}

/// What a call to the session brought about. Streams that were [accepted](Session::accept) are told by their tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request's fields are there: [`Session::take_head`].
    Request(StreamId),
    /// More of a request's body has come, or its end: [`Session::take_body`].
    Data(usize),
    /// All that was pushed to an answer has been sent.
    Room(usize),
    /// The stream is over.
    Closed(usize),
    /// A ping of ours was answered.
    Pong,
}

/// Whether the session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Open,
    /// Nothing is left to be read or sent.
    Over,
}

/// What callbacks write to.
struct State {
    streams: Streams,
    events: Vec<Event>,
    /// Where [`Session::send`] writes.
    out: Vec<u8>,
    /// The request whose fields are coming in; blocks of fields do not interleave.
    receiving: Head,
    header_bytes: usize,
    patience: Patience,
}

/// See the crate.
pub struct Session {
    raw: NonNull<sys::nghttp2_session>,
    state: NonNull<State>,
}

// SAFETY: nghttp2's session has no tie to a thread, and what both pointers point to is owned and not shared.
unsafe impl Send for Session {}

impl Session {
    /// A session whose first bytes to the peer are its settings.
    pub fn new(limits: Limits) -> Self {
        let state = Box::new(State {
            streams: Streams::default(),
            events: Vec::new(),
            out: Vec::new(),
            receiving: Head::default(),
            header_bytes: limits.header_bytes as usize,
            patience: Patience::new(Instant::now()),
        });
        let state = NonNull::from(Box::leak(state));
        let raw = new_raw(state);
        let session = Self { raw, state };
        let settings = [
            (sys::NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.streams),
            (sys::NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window),
            (sys::NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, limits.header_bytes),
            // Priorities are ours to give: see `take_turns`.
            (sys::NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1),
        ]
        .map(|(id, value)| sys::nghttp2_settings_entry { settings_id: id as i32, value });
        // SAFETY: the session is valid; the settings are copied.
        unsafe {
            sys::nghttp2_submit_settings(raw.as_ptr(), NO_FLAGS, settings.as_ptr(), settings.len());
            sys::nghttp2_session_set_local_window_size(raw.as_ptr(), NO_FLAGS, 0, limits.connection_window as i32);
        }
        session
    }

    fn state(&mut self) -> &mut State {
        // SAFETY: owned by the session. Callbacks, the only others to touch it, run inside calls made by other methods, none
        // of which keeps what this returns across such a call.
        unsafe { self.state.as_mut() }
    }

    /// Takes in what came from the peer.
    ///
    /// # Errors
    /// The peer floods the connection, or speaks another protocol. (What only breaks the rules is told to the peer by the
    /// session itself, which then is [over](Status::Over).)
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the session is valid, the bytes outlive the call.
        let taken = unsafe { sys::nghttp2_session_mem_recv2(self.raw.as_ptr(), bytes.as_ptr(), bytes.len()) };
        if taken < 0 { Err(Error(taken as c_int)) } else { Ok(()) }
    }

    /// Appends what is to be sent now to `out`, until that has about [`SEND_AT_ONCE`] bytes.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn send(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        std::mem::swap(&mut self.state().out, out);
        // SAFETY: the session is valid.
        let result = unsafe { sys::nghttp2_session_send(self.raw.as_ptr()) };
        std::mem::swap(&mut self.state().out, out);
        if result != 0 { Err(Error(result)) } else { Ok(()) }
    }

    /// Moves what has happened to the end of `events`.
    pub fn events(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.state().events);
    }

    /// The head of a request, and its body if it is whole already; `None` when its stream is over.
    pub fn take_request(&mut self, id: StreamId) -> Option<(Head, Option<BytesMut>)> {
        let stream = self.state().streams.get_mut(&id)?;
        let head = stream.head.take()?;
        if !stream.ended {
            return Some((head, None));
        }
        let body = std::mem::take(&mut stream.inbox);
        self.consume(id, body.len());
        Some((head, Some(body)))
    }

    /// Says by what name later events tell a stream.
    pub fn accept(&mut self, id: StreamId, tag: usize) {
        if let Some(stream) = self.state().streams.get_mut(&id) {
            stream.tag = Some(tag);
        }
    }

    /// What has come of a request's body, and whether that is its end. The peer may send more once the bytes are
    /// [consumed](Session::consume).
    pub fn take_body(&mut self, id: StreamId) -> (BytesMut, bool) {
        match self.state().streams.get_mut(&id) {
            Some(stream) => {
                stream.announced = false;
                (std::mem::take(&mut stream.inbox), stream.ended)
            }
            None => (BytesMut::new(), true),
        }
    }

    /// Says that `len` bytes of body need no more room here. Of a stream that is over they still count for the connection.
    pub fn consume(&mut self, id: StreamId, len: usize) {
        if len > 0 {
            // SAFETY: the session is valid.
            unsafe { sys::nghttp2_session_consume(self.raw.as_ptr(), id, len) };
        }
    }

    /// Answers a request with status 200, fields and a body that are there, and trailers.
    pub fn answer(
        &mut self,
        id: StreamId,
        fields: &[(&'static str, &'static str)],
        body: impl IntoIterator<Item = Bytes>,
        trailers: Trailers,
    ) {
        let Some(stream) = self.state().streams.get_mut(&id) else { return };
        stream.outbox.extend(body.into_iter().filter(|piece| !piece.is_empty()));
        stream.queued = stream.outbox.iter().map(Bytes::len).sum();
        stream.finished = true;
        stream.trailers = trailers;
        if stream.queued > ONE_FRAME {
            self.take_turns(id);
        }
        self.respond_static(id, fields, true);
    }

    /// Sends an answer a frame at a time, others in between. nghttp2 would send all of it first.
    fn take_turns(&mut self, id: StreamId) {
        let priority = sys::nghttp2_extpri { urgency: USUAL_URGENCY, inc: 1 };
        // SAFETY: the session is valid; the priority is copied.
        unsafe { sys::nghttp2_session_change_extpri_stream_priority(self.raw.as_ptr(), id, &raw const priority, 1) };
    }

    /// Begins the answer to a request; without a body, that is all of it.
    pub fn respond<'a>(
        &mut self,
        id: StreamId,
        status: &str,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        body: bool,
    ) {
        let mut nva = vec![nv(b":status", status.as_bytes(), 0)];
        nva.extend(fields.into_iter().map(|(name, value)| nv(name, value, 0)));
        submit_response(self.raw, id, &nva, body);
    }

    /// As [`Session::respond`] with status 200 and a few fields that live for ever, which are not copied.
    pub fn respond_static(&mut self, id: StreamId, fields: &[(&'static str, &'static str)], body: bool) {
        const KEPT: u8 = (sys::NGHTTP2_NV_FLAG_NO_COPY_NAME | sys::NGHTTP2_NV_FLAG_NO_COPY_VALUE) as u8;
        let mut nva = [nv(b":status", b"200", KEPT); 4];
        let mut len = 1;
        for (slot, (name, value)) in nva[1..].iter_mut().zip(fields) {
            *slot = nv(name.as_bytes(), value.as_bytes(), KEPT);
            len += 1;
        }
        submit_response(self.raw, id, &nva[..len], body);
    }

    /// Adds to an answer's body and returns the bytes that wait to be sent. Nothing happens when the stream is over.
    pub fn push(&mut self, id: StreamId, bytes: Bytes) -> usize {
        let Some(stream) = self.state().streams.get_mut(&id) else { return 0 };
        if bytes.is_empty() {
            return stream.queued;
        }
        stream.queued += bytes.len();
        stream.outbox.push_back(bytes);
        let queued = stream.queued;
        if queued > ONE_FRAME {
            self.take_turns(id);
        }
        self.resume(id);
        queued
    }

    /// Ends an answer's body.
    pub fn finish(&mut self, id: StreamId, trailers: Trailers) {
        let Some(stream) = self.state().streams.get_mut(&id) else { return };
        stream.finished = true;
        stream.trailers = trailers;
        self.resume(id);
    }

    fn resume(&mut self, id: StreamId) {
        let Some(stream) = self.state().streams.get_mut(&id) else { return };
        if std::mem::take(&mut stream.deferred) {
            // SAFETY: the session is valid.
            unsafe { sys::nghttp2_session_resume_data(self.raw.as_ptr(), id) };
        }
    }

    /// Asks the peer whether it is there.
    pub fn ping(&mut self) {
        // SAFETY: the session is valid.
        unsafe { sys::nghttp2_submit_ping(self.raw.as_ptr(), NO_FLAGS, std::ptr::null()) };
    }

    /// Tells the peer to open no more streams; those on their way are still taken.
    pub fn announce_shutdown(&mut self) {
        // SAFETY: the session is valid.
        unsafe { sys::nghttp2_submit_shutdown_notice(self.raw.as_ptr()) };
    }

    /// Takes no further streams. Open ones go on; after the last the session is [over](Status::Over).
    pub fn shut_down(&mut self) {
        // SAFETY: the session is valid.
        unsafe {
            let last = sys::nghttp2_session_get_last_proc_stream_id(self.raw.as_ptr());
            let code = sys::NGHTTP2_NO_ERROR;
            sys::nghttp2_submit_goaway(self.raw.as_ptr(), NO_FLAGS, last, code, std::ptr::null(), 0);
        }
    }

    /// Whether there is anything left to do.
    pub fn status(&self) -> Status {
        // SAFETY: the session is valid; neither call changes it.
        let goes_on = unsafe {
            sys::nghttp2_session_want_read(self.raw.as_ptr()) != 0
                || sys::nghttp2_session_want_write(self.raw.as_ptr()) != 0
        };
        if goes_on { Status::Open } else { Status::Over }
    }

    /// Streams that are open.
    pub fn open_streams(&mut self) -> usize {
        self.state().streams.len()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: both are owned, and nothing uses either afterwards. The session goes first: it may call back.
        unsafe {
            sys::nghttp2_session_del(self.raw.as_ptr());
            drop(Box::from_raw(self.state.as_ptr()));
        }
    }
}

fn nv(name: &[u8], value: &[u8], flags: u8) -> sys::nghttp2_nv {
    sys::nghttp2_nv {
        name: name.as_ptr().cast_mut(),
        value: value.as_ptr().cast_mut(),
        namelen: name.len(),
        valuelen: value.len(),
        flags,
    }
}

fn submit_response(session: NonNull<sys::nghttp2_session>, id: StreamId, nva: &[sys::nghttp2_nv], body: bool) {
    let source = sys::nghttp2_data_source { fd: 0 };
    let provider = sys::nghttp2_data_provider2 { source, read_callback: Some(on_read) };
    let provider = if body { &raw const provider } else { std::ptr::null() };
    // SAFETY: the session is valid; fields are copied unless flagged as living for ever, and never written to; the provider
    // is copied. Of a stream that is over this is an error, and its end was told.
    unsafe { sys::nghttp2_submit_response2(session.as_ptr(), id, nva.as_ptr(), nva.len(), provider) };
}

/// Makes nghttp2's session. As with every allocation, it has its memory or the process ends.
fn new_raw(state: NonNull<State>) -> NonNull<sys::nghttp2_session> {
    let mut raw = std::ptr::null_mut();
    let mut callbacks = std::ptr::null_mut();
    let mut option = std::ptr::null_mut();
    let mut memory = memory::functions();
    // SAFETY: each object is made before it is used and freed once; the session copies callbacks, options and memory
    // functions. The state outlives the session.
    unsafe {
        assert_eq!(sys::nghttp2_session_callbacks_new(&raw mut callbacks), 0, "out of memory");
        assert_eq!(sys::nghttp2_option_new(&raw mut option), 0, "out of memory");
        sys::nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, Some(on_begin_headers));
        sys::nghttp2_session_callbacks_set_on_header_callback(callbacks, Some(on_header));
        sys::nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Some(on_frame));
        sys::nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Some(on_data));
        sys::nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Some(on_close));
        sys::nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, Some(on_sent));
        sys::nghttp2_session_callbacks_set_send_callback2(callbacks, Some(on_send));
        sys::nghttp2_session_callbacks_set_send_data_callback(callbacks, Some(on_send_data));
        sys::nghttp2_option_set_no_auto_window_update(option, 1);
        sys::nghttp2_option_set_max_outbound_ack(option, UNSENT_ACKS);
        sys::nghttp2_option_set_max_settings(option, SETTINGS);
        sys::nghttp2_option_set_max_continuations(option, CONTINUATIONS);
        sys::nghttp2_option_set_stream_reset_rate_limit(option, UNCOUNTED.0, UNCOUNTED.1);
        sys::nghttp2_option_set_glitch_rate_limit(option, UNCOUNTED.0, UNCOUNTED.1);
        let user = state.as_ptr().cast();
        let made = sys::nghttp2_session_server_new3(&raw mut raw, callbacks, user, option, &raw mut memory);
        assert_eq!(made, 0, "out of memory");
        sys::nghttp2_session_callbacks_del(callbacks);
        sys::nghttp2_option_del(option);
    }
    NonNull::new(raw).expect("made without an error")
}

// Callbacks. Each gets the pointer to the state that `new_raw` handed over, inside a call made by a method of `Session`, which
// holds no reference to the state then.

/// # Safety
/// `user` is the pointer handed to nghttp2 in `new_raw`, and no other reference to the state exists.
unsafe fn state<'a>(user: *mut c_void) -> &'a mut State {
    // SAFETY: as above.
    unsafe { &mut *user.cast::<State>() }
}

/// The bytes of a pointer and a length from C, where an empty string may have no pointer.
///
/// # Safety
/// Unless `len` is 0, that many bytes are there for as long as they are used.
unsafe fn bytes<'a>(pointer: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(pointer, len) }
}

/// Ends the connection: see [`Error::farewell`].
const TOO_MUCH: c_int = sys::NGHTTP2_ERR_CALLBACK_FAILURE;

unsafe extern "C" fn on_begin_headers(
    _: *mut sys::nghttp2_session,
    _frame: *const sys::nghttp2_frame,
    user: *mut c_void,
) -> c_int {
    // SAFETY: see `state`.
    unsafe { state(user) }.receiving = Head::default();
    0
}

unsafe extern "C" fn on_header(
    _: *mut sys::nghttp2_session,
    frame: *const sys::nghttp2_frame,
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
    _flags: u8,
    user: *mut c_void,
) -> c_int {
    // SAFETY: fields come with HEADERS frames only, as nothing is pushed to a server; nghttp2 passes the lengths of both
    // strings; see `state`.
    let (state, category, name, value) =
        unsafe { (state(user), (*frame).headers.cat, bytes(name, name_len), bytes(value, value_len)) };
    // A request's trailers mean nothing here.
    if category != sys::NGHTTP2_HCAT_REQUEST {
        return 0;
    }
    state.receiving.push(name, value, state.header_bytes);
    if state.receiving.list_size() > FAR_TOO_LARGE * state.header_bytes { TOO_MUCH } else { 0 }
}

unsafe extern "C" fn on_frame(
    session: *mut sys::nghttp2_session,
    frame: *const sys::nghttp2_frame,
    user: *mut c_void,
) -> c_int {
    // SAFETY: every frame has a header; see `state`.
    let (state, header) = unsafe { (state(user), (*frame).hd) };
    let ends = header.flags & sys::NGHTTP2_FLAG_END_STREAM as u8 != 0;
    let id = header.stream_id;
    match header.type_.into() {
        // SAFETY: a HEADERS frame, as its header says.
        sys::NGHTTP2_HEADERS if unsafe { (*frame).headers.cat } == sys::NGHTTP2_HCAT_REQUEST => {
            let head = std::mem::take(&mut state.receiving);
            let too_large = head.list_size() > state.header_bytes;
            let head = Some(head).filter(|_| !too_large);
            state.streams.insert(id, Stream { head, ended: ends, ..Stream::default() });
            if too_large {
                // SAFETY: the session is in a callback, where frames may be submitted; the call runs none itself.
                let session = unsafe { NonNull::new_unchecked(session) };
                submit_response(session, id, &[nv(b":status", b"431", 0)], false);
            } else {
                state.events.push(Event::Request(id));
            }
        }
        sys::NGHTTP2_HEADERS | sys::NGHTTP2_DATA => {
            if !ends && header.length == 0 && !state.patience.bears(Instant::now) {
                return TOO_MUCH;
            }
            let Some(stream) = state.streams.get_mut(&id) else { return 0 };
            stream.ended |= ends;
            if ends
                && !stream.announced
                && let Some(tag) = stream.tag
            {
                stream.announced = true;
                state.events.push(Event::Data(tag));
            }
        }
        sys::NGHTTP2_PING if header.flags & sys::NGHTTP2_FLAG_ACK as u8 != 0 => state.events.push(Event::Pong),
        _ => {}
    }
    0
}

unsafe extern "C" fn on_data(
    _: *mut sys::nghttp2_session,
    _flags: u8,
    id: StreamId,
    data: *const u8,
    len: usize,
    user: *mut c_void,
) -> c_int {
    // SAFETY: nghttp2 passes the length; see `state`.
    let (state, data) = unsafe { (state(user), bytes(data, len)) };
    let Some(stream) = state.streams.get_mut(&id) else { return 0 };
    // Grows with what has come, never to what was announced.
    stream.inbox.extend_from_slice(data);
    if !stream.announced
        && let Some(tag) = stream.tag
    {
        stream.announced = true;
        state.events.push(Event::Data(tag));
    }
    0
}

unsafe extern "C" fn on_close(session: *mut sys::nghttp2_session, id: StreamId, code: u32, user: *mut c_void) -> c_int {
    // SAFETY: see `state`.
    let state = unsafe { state(user) };
    let Some(stream) = state.streams.remove(&id) else { return 0 };
    state.events.extend(stream.tag.map(Event::Closed));
    // What nobody will take no longer counts against the connection.
    let left = stream.inbox.len();
    if left > 0 {
        // SAFETY: the session is in a callback, where frames may be submitted; the call runs none itself.
        unsafe { sys::nghttp2_session_consume_connection(session, left) };
    }
    // By the peer's wish, or by ours because of what the peer did.
    if code != sys::NGHTTP2_NO_ERROR && !state.patience.bears(Instant::now) { TOO_MUCH } else { 0 }
}

/// Once an answer is whole, the rest of its request is not wanted.
unsafe extern "C" fn on_sent(
    session: *mut sys::nghttp2_session,
    frame: *const sys::nghttp2_frame,
    user: *mut c_void,
) -> c_int {
    // SAFETY: every frame has a header; see `state`.
    let (state, header) = unsafe { (state(user), (*frame).hd) };
    let ends = header.flags & sys::NGHTTP2_FLAG_END_STREAM as u8 != 0
        && matches!(header.type_.into(), sys::NGHTTP2_HEADERS | sys::NGHTTP2_DATA);
    if ends && state.streams.get(&header.stream_id).is_some_and(|stream| !stream.ended) {
        let code = sys::NGHTTP2_NO_ERROR;
        // SAFETY: the session is in a callback, where frames may be submitted; the call runs none itself.
        unsafe { sys::nghttp2_submit_rst_stream(session, NO_FLAGS, header.stream_id, code) };
    }
    0
}

unsafe extern "C" fn on_send(
    _: *mut sys::nghttp2_session,
    data: *const u8,
    len: usize,
    _flags: c_int,
    user: *mut c_void,
) -> sys::nghttp2_ssize {
    // SAFETY: nghttp2 passes the length; see `state`.
    let (state, data) = unsafe { (state(user), bytes(data, len)) };
    if state.out.len() >= SEND_AT_ONCE {
        return sys::NGHTTP2_ERR_WOULDBLOCK as sys::nghttp2_ssize;
    }
    state.out.extend_from_slice(data);
    len as sys::nghttp2_ssize
}

/// How much of an answer goes into the next frame; [`on_send_data`] writes it.
unsafe extern "C" fn on_read(
    session: *mut sys::nghttp2_session,
    id: StreamId,
    _buf: *mut u8,
    len: usize,
    flags: *mut u32,
    _source: *mut sys::nghttp2_data_source,
    user: *mut c_void,
) -> sys::nghttp2_ssize {
    // SAFETY: see `state`.
    let state = unsafe { state(user) };
    let Some(stream) = state.streams.get_mut(&id) else {
        return sys::NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE as sys::nghttp2_ssize;
    };
    if stream.queued == 0 && !stream.finished {
        stream.deferred = true;
        return sys::NGHTTP2_ERR_DEFERRED as sys::nghttp2_ssize;
    }
    let taken = stream.queued.min(len);
    let mut set = sys::NGHTTP2_DATA_FLAG_NO_COPY;
    if taken == stream.queued && stream.finished {
        set |= sys::NGHTTP2_DATA_FLAG_EOF;
        let trailers = std::mem::take(&mut stream.trailers);
        if submit_trailers(session, id, &trailers) {
            set |= sys::NGHTTP2_DATA_FLAG_NO_END_STREAM;
        }
    }
    // SAFETY: nghttp2 passes a place for the flags.
    unsafe { *flags |= set };
    taken as sys::nghttp2_ssize
}

/// Whether there are any.
fn submit_trailers(session: *mut sys::nghttp2_session, id: StreamId, trailers: &Trailers) -> bool {
    let mut nva = [nv(b"", b"", 0); 2];
    let mut count = 0;
    for (slot, Field { name, value }) in nva.iter_mut().zip(trailers.iter().flatten()) {
        let value_flag = match value {
            Cow::Borrowed(_) => sys::NGHTTP2_NV_FLAG_NO_COPY_VALUE,
            // Such texts differ, and would push better things out of the peer's table.
            Cow::Owned(_) => sys::NGHTTP2_NV_FLAG_NO_INDEX,
        };
        let flags = sys::NGHTTP2_NV_FLAG_NO_COPY_NAME | value_flag;
        *slot = nv(name.as_bytes(), value.as_bytes(), flags as u8);
        count += 1;
    }
    if count > 0 {
        // SAFETY: may be called while data is read; the fields are copied, or live for ever.
        unsafe { sys::nghttp2_submit_trailer(session, id, nva.as_ptr(), count) };
    }
    count > 0
}

unsafe extern "C" fn on_send_data(
    _: *mut sys::nghttp2_session,
    frame: *mut sys::nghttp2_frame,
    header: *const u8,
    len: usize,
    _source: *mut sys::nghttp2_data_source,
    user: *mut c_void,
) -> c_int {
    const FRAME_HEADER: usize = 9;
    // SAFETY: a DATA frame, whose header has nine bytes; see `state`.
    let (state, id, header) = unsafe { (state(user), (*frame).hd.stream_id, bytes(header, FRAME_HEADER)) };
    if state.out.len() >= SEND_AT_ONCE {
        return sys::NGHTTP2_ERR_WOULDBLOCK;
    }
    let Some(stream) = state.streams.get_mut(&id) else { return sys::NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE };
    state.out.extend_from_slice(header);
    let mut left = len;
    while left > 0 {
        // `on_read` promised no more than there is, and only this takes it away.
        let Some(piece) = stream.outbox.front_mut() else { return sys::NGHTTP2_ERR_CALLBACK_FAILURE };
        let part = piece.len().min(left);
        state.out.extend_from_slice(&piece[..part]);
        piece.advance(part);
        left -= part;
        if piece.is_empty() {
            stream.outbox.pop_front();
        }
    }
    stream.queued -= len;
    if stream.queued == 0 && !stream.finished {
        state.events.extend(stream.tag.map(Event::Room));
    }
    0
}
