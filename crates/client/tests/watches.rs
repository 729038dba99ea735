//! Watches over lost connections: no gap, no repetition, and ends that are told.

mod common;

use std::time::Duration;

use common::{Call, Fake};
use dolmen_client::{Client, Error, Watcher, code, mvccpb, pb, text, watch_error};

async fn next(watcher: &mut Watcher) -> pb::WatchResponse {
    told(watcher).await.unwrap()
}

async fn told(watcher: &mut Watcher) -> Result<pb::WatchResponse, Error> {
    tokio::time::timeout(Duration::from_secs(5), watcher.next()).await.expect("nothing came").expect("it has ended")
}

fn on(key: &'static str) -> pb::WatchCreateRequest {
    pb::WatchCreateRequest { key: key.into(), ..Default::default() }
}

fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { revision, ..Default::default() })
}

fn created(watch_id: i64, revision: i64) -> pb::WatchResponse {
    pb::WatchResponse { header: header(revision), watch_id, created: true, ..Default::default() }
}

fn events(watch_id: i64, revisions: &[i64]) -> pb::WatchResponse {
    let event = |mod_revision: &i64| mvccpb::Event {
        kv: Some(mvccpb::KeyValue { mod_revision: *mod_revision, ..Default::default() }),
        ..Default::default()
    };
    // The header is of the store, which may be far ahead of the events.
    let header = header(revisions.last().unwrap() + 100);
    pb::WatchResponse { header, watch_id, events: revisions.iter().map(event).collect(), ..Default::default() }
}

fn revisions(response: &pb::WatchResponse) -> Vec<i64> {
    response.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision).collect()
}

impl Call {
    async fn create(&mut self) -> pb::WatchCreateRequest {
        match self.request().await {
            pb::watch_request::RequestUnion::CreateRequest(request) => request,
            other => panic!("{other:?}"),
        }
    }

    async fn request(&mut self) -> pb::watch_request::RequestUnion {
        self.next::<pb::WatchRequest>().await.unwrap().request_union.unwrap()
    }

    /// Leaves the stream open until the client goes.
    async fn linger(mut self) {
        while self.next::<pb::WatchRequest>().await.is_some() {}
    }
}

async fn watch(client: &Client, requests: Vec<pb::WatchCreateRequest>) -> Watcher {
    client.watch(requests).await.unwrap()
}

#[tokio::test]
async fn a_watch_goes_on_where_it_was_cut() {
    let fake = Fake::start(|mut call: Call| async move {
        let request = call.create().await;
        assert_eq!(request.key, "a");
        match call.number {
            0 => {
                assert_eq!(request.start_revision, 0);
                call.send(&created(3, 7));
                call.send(&events(3, &[8, 9]));
                call.flushed().await;
                call.cut();
            }
            1 => {
                // Cut again before anything came.
                assert_eq!(request.start_revision, 10);
                call.cut();
            }
            _ => {
                assert_eq!(request.start_revision, 10);
                call.send(&created(0, 9));
                call.send(&events(0, &[10]));
                call.linger().await;
            }
        }
    })
    .await;
    let mut watcher = watch(&fake.client().await, vec![on("a")]).await;
    assert!(next(&mut watcher).await.created);
    assert_eq!(revisions(&next(&mut watcher).await), [8, 9]);
    let after = next(&mut watcher).await;
    assert!(!after.created, "told twice");
    assert_eq!((after.watch_id, revisions(&after)), (0, vec![10]));
}

#[tokio::test]
async fn a_watch_cut_before_its_first_event_starts_after_its_creation() {
    let fake = Fake::start(|mut call: Call| async move {
        let request = call.create().await;
        assert_eq!(request.start_revision, if call.number == 0 { 0 } else { 8 });
        call.send(&created(0, 7));
        call.flushed().await;
        if call.number == 0 {
            return call.cut();
        }
        call.send(&events(0, &[8]));
        call.linger().await;
    })
    .await;
    let mut watcher = watch(&fake.client().await, vec![on("a")]).await;
    assert!(next(&mut watcher).await.created);
    assert_eq!(revisions(&next(&mut watcher).await), [8]);
}

#[tokio::test]
async fn progress_moves_the_place_to_go_on_from() {
    let fake = Fake::start(|mut call: Call| async move {
        let request = call.create().await;
        call.send(&created(0, 7));
        if call.number == 0 {
            call.send(&pb::WatchResponse { header: header(50), watch_id: 0, ..Default::default() });
            call.flushed().await;
            return call.cut();
        }
        assert_eq!(request.start_revision, 51);
        call.send(&events(0, &[60]));
        call.linger().await;
    })
    .await;
    let mut watcher = watch(&fake.client().await, vec![on("a")]).await;
    assert!(next(&mut watcher).await.created);
    let progress = next(&mut watcher).await;
    assert!(progress.events.is_empty() && !progress.canceled);
    assert_eq!(revisions(&next(&mut watcher).await), [60]);
}

#[tokio::test]
async fn fragments_are_joined_and_half_an_answer_is_asked_for_again() {
    let fake = Fake::start(|mut call: Call| async move {
        let request = call.create().await;
        call.send(&created(0, 7));
        call.send(&pb::WatchResponse { fragment: true, ..events(0, &[8, 8]) });
        if call.number == 0 {
            call.flushed().await;
            return call.cut();
        }
        assert_eq!(request.start_revision, 8);
        call.send(&pb::WatchResponse { fragment: true, ..events(0, &[8]) });
        call.send(&events(0, &[9]));
        call.linger().await;
    })
    .await;
    let mut watcher = watch(&fake.client().await, vec![on("a")]).await;
    assert!(next(&mut watcher).await.created);
    let whole = next(&mut watcher).await;
    assert_eq!((whole.fragment, revisions(&whole)), (false, vec![8, 8, 8, 9]));
}

#[tokio::test]
async fn a_history_compacted_meanwhile_ends_the_watch() {
    let fake = Fake::start(|mut call: Call| async move {
        let _ = call.create().await;
        call.send(&created(0, 7));
        call.flushed().await;
        if call.number == 0 {
            return call.cut();
        }
        let compact_revision = 20;
        call.send(&pb::WatchResponse { canceled: true, compact_revision, header: header(30), ..Default::default() });
        call.linger().await;
    })
    .await;
    let mut watcher = watch(&fake.client().await, vec![on("a")]).await;
    assert!(next(&mut watcher).await.created);
    let last = next(&mut watcher).await;
    assert_eq!((last.canceled, last.compact_revision), (true, 20));
    assert!(watch_error(&last).unwrap().is(text::COMPACTED));
}

#[tokio::test]
async fn many_watches_keep_their_numbers() {
    let fake = Fake::start(|mut call: Call| async move {
        // The server numbers them backwards on its first stream.
        let (a, b) = if call.number == 0 { (9, 4) } else { (0, 1) };
        assert_eq!(call.create().await.key, "a");
        call.send(&created(a, 7));
        assert_eq!(call.create().await.key, "b");
        call.send(&created(b, 7));
        if call.number == 0 {
            call.send(&events(b, &[8]));
            call.flushed().await;
            return call.cut();
        }
        call.send(&events(a, &[8]));
        call.send(&events(b, &[9]));
        // Answers to both, then the end of one.
        let pb::watch_request::RequestUnion::ProgressRequest(_) = call.request().await else { panic!() };
        call.send(&pb::WatchResponse { header: header(9), watch_id: -1, ..Default::default() });
        let pb::watch_request::RequestUnion::CancelRequest(cancel) = call.request().await else { panic!() };
        assert_eq!(cancel.watch_id, 0);
        call.send(&events(a, &[10]));
        call.send(&pb::WatchResponse { watch_id: 0, canceled: true, ..Default::default() });
        call.send(&events(b, &[11]));
        call.linger().await;
    })
    .await;
    let mut watcher = watch(&fake.client().await, vec![on("a"), on("b")]).await;
    let handle = watcher.handle();
    for id in [0, 1] {
        let response = next(&mut watcher).await;
        assert_eq!((response.created, response.watch_id), (true, id));
    }
    for (id, revision) in [(1, 8), (0, 8), (1, 9)] {
        let response = next(&mut watcher).await;
        assert_eq!((response.watch_id, revisions(&response)), (id, vec![revision]));
    }
    handle.request_progress();
    for id in [0, 1] {
        let response = next(&mut watcher).await;
        assert_eq!((response.watch_id, response.header.unwrap().revision), (id, 9));
    }
    // What the server still sends of an ended watch is not shown.
    handle.cancel(0);
    let response = next(&mut watcher).await;
    assert_eq!((response.watch_id, revisions(&response)), (1, vec![11]));
}

#[tokio::test]
async fn a_watch_is_added_while_others_run() {
    let fake = Fake::start(|mut call: Call| async move {
        for id in 0..2 {
            let _ = call.create().await;
            call.send(&created(id, 7));
        }
        call.linger().await;
    })
    .await;
    let mut watcher = watch(&fake.client().await, vec![on("a")]).await;
    assert_eq!(next(&mut watcher).await.watch_id, 0);
    assert_eq!(watcher.handle().add(on("b")), 1);
    assert_eq!(next(&mut watcher).await.watch_id, 1);
}

#[tokio::test]
async fn a_refused_watch_is_told_and_leaves_the_others() {
    let refusals =
        [("etcdserver: permission denied", "etcdserver: permission denied"), ("something odd", "something odd")];
    for (reason, shown) in refusals {
        let fake = Fake::start(move |mut call: Call| async move {
            let _ = call.create().await;
            let cancel_reason = reason.to_owned();
            call.send(&pb::WatchResponse { cancel_reason, canceled: true, watch_id: -1, ..created(-1, 7) });
            let _ = call.create().await;
            call.send(&created(0, 7));
            call.linger().await;
        })
        .await;
        let mut watcher = watch(&fake.client().await, vec![on("a"), on("b")]).await;
        let refused = next(&mut watcher).await;
        assert_eq!((refused.watch_id, refused.canceled), (0, true));
        assert_eq!(watch_error(&refused).unwrap().to_string(), shown);
        let other = next(&mut watcher).await;
        assert_eq!((other.watch_id, watch_error(&other).is_none()), (1, true));
    }
}

#[tokio::test]
async fn errors_that_no_new_stream_removes_end_the_watcher() {
    for (code, reason) in [(code::UNAVAILABLE, text::NO_LEADER), (code::PERMISSION_DENIED, text::PERMISSION_DENIED)] {
        let fake = Fake::start(move |mut call: Call| async move {
            let _ = call.create().await;
            call.send(&created(0, 7));
            call.end(code, reason);
        })
        .await;
        let mut watcher = watch(&fake.client().await, vec![on("a")]).await;
        assert!(next(&mut watcher).await.created);
        assert!(told(&mut watcher).await.unwrap_err().is(reason));
        assert!(watcher.next().await.is_none());
        assert_eq!(fake.count("/Watch"), 1);
    }
}

#[tokio::test]
async fn a_stale_token_does_not_end_a_watch() {
    let fake = Fake::start(|mut call: Call| async move {
        if call.path.ends_with("/Authenticate") {
            let token = format!("t{}", call.number);
            return call.reply(&pb::AuthenticateResponse { token, ..Default::default() });
        }
        let _ = call.create().await;
        if call.header("token") == "t0" {
            let cancel_reason = format!("rpc error: code = Unauthenticated desc = {}", text::INVALID_AUTH_TOKEN);
            call.send(&pb::WatchResponse { cancel_reason, canceled: true, watch_id: -1, ..created(-1, 7) });
        } else {
            call.send(&created(0, 7));
        }
        call.linger().await;
    })
    .await;
    let user = Some(("root".to_owned(), "secret".to_owned()));
    let client = Client::connect(dolmen_client::Config { user, ..fake.config() }).await.unwrap();
    let mut watcher = watch(&client, vec![on("a")]).await;
    let response = next(&mut watcher).await;
    assert!(response.created && !response.canceled);
    assert_eq!(fake.count("/Authenticate"), 2);
}

#[tokio::test]
async fn a_slow_caller_holds_the_server_back_and_loses_nothing() {
    let fake = Fake::start(|mut call: Call| async move {
        let _ = call.create().await;
        call.send(&created(0, 0));
        for revision in 1..=500 {
            call.send(&events(0, &[revision]));
        }
        call.linger().await;
    })
    .await;
    let mut watcher = watch(&fake.client().await, vec![on("a")]).await;
    assert!(next(&mut watcher).await.created);
    tokio::time::sleep(Duration::from_millis(100)).await;
    for revision in 1..=500 {
        assert_eq!(revisions(&next(&mut watcher).await), [revision]);
    }
}
