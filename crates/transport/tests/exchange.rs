//! Messages between members on loopback: all of them, in order, through whatever way is open.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

mod common;

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Member, Tls, append, bind, connect, heartbeat, settle, wait};
use dolmen_proto::raftpb::MessageType;
use dolmen_transport::{PeerAddress, PeerClient, PeerSender, PeerUrl};

#[test]
fn a_hundred_thousand_messages_arrive_in_order() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    let payloads: Vec<Bytes> = [0, 1, 100, 4095, 4096, 20_000].map(|len| Bytes::from(vec![b'x'; len])).to_vec();
    let (mut sent, mut index) = (0u64, 0u64);
    let began = Instant::now();
    while sent < 100_000 {
        let mut batch = Vec::new();
        for number in 0..100 {
            if number % 2 == 0 {
                let data: Vec<Bytes> =
                    (0..number % 3).map(|n| payloads[((sent + n) % 97 % 6) as usize].clone()).collect();
                batch.push(append(1, 2, index, &data));
                index += data.len() as u64;
            } else {
                batch.push(heartbeat(1, 2, sent + number));
            }
        }
        sent += batch.len() as u64;
        a.transport.send(batch);
        wait("the queue has room", || sent - b.sink.received.load(SeqCst) < 2000);
    }
    wait("all arrive", || b.sink.received.load(SeqCst) == sent);
    println!("{sent} messages in {:?}", began.elapsed());
    assert!(a.sink.unreachable.lock().is_empty());

    let (mut next_index, mut last_commit) = (0, 0);
    for message in b.sink.messages.lock().iter() {
        assert_eq!((message.from, message.to, message.term), (1, 2, 5));
        if message.r#type == MessageType::MsgApp as i32 {
            assert_eq!((message.index, message.log_term, message.commit), (next_index, 5, next_index));
            for entry in &message.entries {
                next_index += 1;
                assert_eq!(entry.index, next_index);
                assert!(entry.data.iter().all(|byte| *byte == b'x'));
            }
        } else {
            assert!(message.commit > last_commit, "heartbeats stay in order");
            last_commit = message.commit;
        }
    }
    assert_eq!(next_index, index);
}

#[test]
fn a_large_entry_crosses_whole() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    let data = Bytes::from((0..20u32 << 20).map(|n| (n % 251) as u8).collect::<Vec<u8>>());
    a.transport
        .send(vec![append(1, 2, 0, &[data.clone(), data.clone()]), append(1, 2, 2, std::slice::from_ref(&data))]);
    wait("both arrive", || b.sink.received.load(SeqCst) == 2);
    for message in b.sink.messages.lock().iter() {
        assert!(message.entries.iter().all(|entry| entry.data == data));
    }
}

#[test]
fn a_restarted_peer_is_found_again() {
    let listener = bind();
    let address = listener.local_addr().expect("address");
    let (a, b) = (Member::start(1), Member::start_on(2, listener, Tls::default()));
    connect(&a, &b);
    let before = a.transport.active_since(2).expect("active");
    drop(b);
    wait("the loss is noticed", || !a.is_active(2));
    a.transport.send(vec![heartbeat(1, 2, 1)]);
    wait("what is sent meanwhile is reported", || a.sink.unreachable.lock().contains_key(&2));
    assert!(a.transport.stats().get(2).expect("known").disconnected.load(SeqCst) >= 1);

    let listener = std::net::TcpListener::bind(address).expect("binds again");
    let b = Member::start_on(2, listener, Tls::default());
    b.transport.set_peers(vec![a.address()], vec![]);
    settle(&a, &b);
    assert!(a.transport.active_since(2).expect("active") > before);
    a.transport.send(vec![heartbeat(1, 2, 7), append(1, 2, 3, &[Bytes::from_static(b"x")])]);
    wait("messages arrive again", || b.sink.received.load(SeqCst) == 2);
}

#[test]
fn a_member_that_dies_shows_once() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    assert_eq!(a.sink.dolmens.lock().get(&2), Some(&true), "it has said what it is");
    // One stream closes for a newer one now and then; that is no death.
    b.transport.set_peers(vec![], vec![]);
    b.transport.set_peers(vec![a.address(), b.address()], vec![]);
    settle(&a, &b);
    assert!(a.sink.gone.lock().is_empty());
    drop(b);
    wait("its death shows", || !a.sink.gone.lock().is_empty());
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(*a.sink.gone.lock(), [2]);
}

#[test]
fn idle_links_stay_up() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    let since = (a.transport.active_since(2), b.transport.active_since(1));
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!((a.transport.active_since(2), b.transport.active_since(1)), since);
    assert!(a.transport.stats().heartbeat_bytes.load(SeqCst) > 0);
}

#[test]
fn messages_of_strangers_and_for_others_are_refused() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    let mut local = heartbeat(1, 2, 0);
    local.r#type = MessageType::MsgHup as i32;
    let mut unknown = heartbeat(1, 2, 0);
    unknown.r#type = 77;
    a.transport.send(vec![local, unknown, heartbeat(1, 2, 9)]);
    wait("the good one arrives", || b.sink.received.load(SeqCst) == 1);
    assert_eq!(b.sink.messages.lock()[0].commit, 9);

    // To a URL where another member lives.
    let c = Member::start(3);
    c.transport.set_peers(vec![PeerAddress { id: 9, urls: vec![b.url.clone()] }], vec![]);
    c.transport.send(vec![heartbeat(3, 9, 1)]);
    wait("the pipeline is refused", || c.sink.unreachable.lock().contains_key(&9));
    assert!(!c.is_active(9));
    assert_eq!(c.sink.removed.load(SeqCst), 0, "a wrong address is no removal");
}

#[test]
fn a_removed_member_is_told_so() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    a.transport.set_peers(vec![a.address()], vec![2]);
    wait("it hears of it", || b.sink.removed.load(SeqCst) > 0);
    wait("and the link is gone", || !a.is_active(2));
}

#[test]
fn an_unknown_member_is_answered_through_the_pipeline() {
    // `b` knows `a`, while `a` has not read in its log yet that there is a `b`.
    let (a, b) = (Member::start(1), Member::start(2));
    b.transport.set_peers(vec![a.address()], vec![]);
    b.transport.send(vec![heartbeat(2, 1, 1)]);
    wait("the message arrives", || a.sink.received.load(SeqCst) == 1);
    a.transport.send(vec![heartbeat(1, 2, 2)]);
    wait("so does the answer", || b.sink.received.load(SeqCst) == 1);
}

#[test]
fn another_url_of_a_peer_is_tried() {
    let (a, b) = (Member::start(1), Member::start(2));
    let dead = format!("http://{}", bind().local_addr().expect("address"));
    a.transport.set_peers(vec![PeerAddress { id: 2, urls: vec![dead, b.url.clone()] }], vec![]);
    b.transport.set_peers(vec![a.address()], vec![]);
    wait("connected", || a.is_active(2));
    let cluster = dolmen_transport::PeerUrl::parse(&b.url).expect("parses");
    assert!(!cluster.tls);
}

#[test]
fn the_api_is_asked_for_what_is_not_rafts() {
    let a = Member::start(1);
    let url = PeerUrl::parse(&a.url).expect("parses");
    let client = PeerClient::new(None, Duration::from_secs(1));
    let limit = Duration::from_secs(5);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        for _ in 0..3 {
            let version = client.get_version(&url, limit).await.expect("answers");
            assert_eq!(version, "GET /version ");
            assert!(!client.get_downgrade_enabled(&url, limit).await.expect("answers"));
        }
        let members = client.get_members(&url, limit).await.expect("answers");
        assert_eq!((members.cluster_id, &members.json[..]), (common::CLUSTER, &b"[]\n"[..]));
        let renewed = client.post_leases(&url, Bytes::from_static(b"id"), limit).await.expect("answers");
        assert_eq!(renewed.body, "POST /leases id");
        let hash = client.get_hashkv(&url, 0xc1, 5, limit).await.expect("answers");
        assert_eq!(hash.body, "GET /members/hashkv {\"revision\":5}");
        let promoted = client.promote(&url, u64::MAX, Some("token"), limit).await.expect("answers");
        assert_eq!(promoted.body, format!("POST /members/promote/{} ", u64::MAX));
        let too_large = client.post_leases(&url, vec![0; 2 << 20].into(), limit).await.expect("answers");
        assert_eq!(too_large.status, 413);
    });
}
