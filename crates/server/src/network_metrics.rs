//! The counts of ports, and the transport's under etcd's names.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dolmen_api::ExtraMetrics;
use dolmen_api::prometheus::{Page, Type};
use dolmen_net::Room;
use dolmen_transport::{NetworkStats, PeerStats, SnapshotCounts};
use dolmen_types::{MemberId, hex_id};

use crate::ports::Rooms;

/// The families of ports and peers of the metrics page.
pub fn families(local: MemberId, stats: Arc<NetworkStats>, rooms: Rooms) -> ExtraMetrics {
    Box::new(move |page| {
        connections(page, &rooms);
        let peers = stats.peers();
        let local = hex_id(local);
        pairs(page, &local, &peers);
        bytes(page, &peers);
        page.family(
            "etcd_network_peer_round_trip_time_seconds",
            Type::Histogram,
            "Round-Trip-Time histogram between peers",
        );
        for peer in &peers {
            let id = hex_id(peer.id);
            let (seen, count, sum) =
                (peer.round_trip.cumulative(), peer.round_trip.count(), peer.round_trip.sum_seconds());
            page.histogram("etcd_network_peer_round_trip_time_seconds", &[("To", &id)], &seen, count, sum);
        }
        snapshots(page, "send", "To", &peers, |peer| &peer.snapshot_send);
        snapshots(page, "receive", "From", &peers, |peer| &peer.snapshot_receive);
    })
}

fn connections(page: &mut Page, rooms: &Rooms) {
    type Value = fn(&Room) -> f64;
    let families: [(&str, Type, &str, Value); 3] = [
        ("dolmen_connections_limit", Type::Gauge, "Connections that a port holds at most.", |room| {
            room.capacity() as f64
        }),
        (
            "dolmen_connections_closed_idle_total",
            Type::Counter,
            "Connections without a stream that were closed to make room for others.",
            |room| room.asked_to_leave() as f64,
        ),
        (
            "dolmen_connections_refused_total",
            Type::Counter,
            "Connections that were refused because all others had streams.",
            |room| room.refused() as f64,
        ),
    ];
    for (name, kind, help, value) in families {
        page.family(name, kind, help);
        for (port, room) in [("client", &rooms.clients), ("peer", &rooms.peers)] {
            page.sample(name, &[("Port", port)], value(room));
        }
    }
}

fn pairs(page: &mut Page, local: &str, peers: &[Arc<PeerStats>]) {
    page.family("etcd_network_known_peers", Type::Gauge, "The current number of known peers.");
    let all = peers.iter().map(|peer| hex_id(peer.id)).chain([local.to_owned()]);
    for remote in all {
        page.sample("etcd_network_known_peers", &[("Local", local), ("Remote", &remote)], 1.0);
    }
    page.family("etcd_network_active_peers", Type::Gauge, "The current number of active peer connections.");
    for peer in peers {
        let labels = [("Local", local), ("Remote", &hex_id(peer.id))];
        page.sample("etcd_network_active_peers", &labels, f64::from(u8::from(peer.is_active())));
    }
    page.family("etcd_network_disconnected_peers_total", Type::Counter, "The total number of disconnected peers.");
    for peer in peers {
        let labels = [("Local", local), ("Remote", &hex_id(peer.id))];
        page.sample("etcd_network_disconnected_peers_total", &labels, peer.disconnected.load(Relaxed) as f64);
    }
}

fn bytes(page: &mut Page, peers: &[Arc<PeerStats>]) {
    type Count = fn(&PeerStats) -> u64;
    let families: [(&str, &str, &str, Count); 4] = [
        ("etcd_network_peer_sent_bytes_total", "To", "The total number of bytes sent to peers.", |peer| {
            peer.sent_bytes.load(Relaxed)
        }),
        ("etcd_network_peer_received_bytes_total", "From", "The total number of bytes received from peers.", |peer| {
            peer.received_bytes.load(Relaxed)
        }),
        ("etcd_network_peer_sent_failures_total", "To", "The total number of send failures from peers.", |peer| {
            peer.sent_failures.load(Relaxed)
        }),
        (
            "etcd_network_peer_received_failures_total",
            "From",
            "The total number of receive failures from peers.",
            |peer| peer.received_failures.load(Relaxed),
        ),
    ];
    for (name, label, help, count) in families {
        page.family(name, Type::Counter, help);
        for peer in peers {
            page.sample(name, &[(label, &hex_id(peer.id))], count(peer) as f64);
        }
    }
}

fn snapshots(
    page: &mut Page,
    direction: &str,
    label: &str,
    peers: &[Arc<PeerStats>],
    counts: fn(&PeerStats) -> &SnapshotCounts,
) {
    let name = |what: &str| format!("etcd_network_snapshot_{direction}_{what}");
    type Value = fn(&SnapshotCounts) -> f64;
    let families: [(String, Type, Value); 3] = [
        (name("success"), Type::Counter, |counts| counts.success.load(Relaxed) as f64),
        (name("failures"), Type::Counter, |counts| counts.failures.load(Relaxed) as f64),
        (name("inflights_total"), Type::Gauge, |counts| counts.inflight.load(Relaxed) as f64),
    ];
    for (name, kind, value) in families {
        page.family(&name, kind, "Snapshots on their way between peers");
        for peer in peers {
            page.sample(&name, &[(label, &hex_id(peer.id))], value(counts(peer)));
        }
    }
    let name = name("total_duration_seconds");
    page.family(&name, Type::Histogram, "Total latency distributions of v3 snapshot transfers");
    for peer in peers {
        let seconds = &counts(peer).seconds;
        let (seen, count, sum) = (seconds.cumulative(), seconds.count(), seconds.sum_seconds());
        page.histogram(&name, &[(label, &hex_id(peer.id))], &seen, count, sum);
    }
}
