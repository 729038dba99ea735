//! A process without descriptors; alone in its file, as the limit is the process's.

#![allow(clippy::disallowed_methods, reason = "a test looks at its own process")]

use std::time::Duration;

use dolmen_net::{Listener, Room, bind_tcp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn want_of_descriptors_is_waited_out() {
    let bound = bind_tcp("127.0.0.1", 0).expect("binds");
    let dolmen_net::Bound::Tcp(socket) = &bound else { unreachable!("a TCP socket") };
    let address = socket.local_addr().expect("bound");
    let listener = Listener::new(bound).expect("registers");
    let room = Room::new(100);
    // They wait in the kernel; nobody needs a descriptor for them yet.
    let clients: Vec<_> = (0..5).map(|_| std::net::TcpStream::connect(address).expect("connects")).collect();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum }).expect("lowered");
    let mut taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len() - 2);

    let mut accepted = Vec::new();
    for _ in 0..2 {
        accepted.push(tokio::time::timeout(PATIENCE, listener.accept(&room)).await.expect("room for two"));
    }
    let third = listener.accept(&room);
    let mut third = std::pin::pin!(third);
    assert!(tokio::time::timeout(Duration::from_millis(200), third.as_mut()).await.is_err(), "none is left");
    assert_eq!(room.asked_to_leave(), 2, "idle connections are asked to give theirs back");
    accepted.pop();
    tokio::time::timeout(PATIENCE, third).await.expect("one is free again");
    drop((clients, taken));
}
