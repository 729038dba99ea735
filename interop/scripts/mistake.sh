# A mistake: keys deleted under one prefix on all members; a snapshot from before is started beside the living cluster and read.
set -euo pipefail
TLS="--cacert=$CACERT --cert=$CERT --key=$KEY"
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true' EXIT

{ echo; for i in $(seq 1 100); do echo "put /registry/ns/prod/$i \"object $i\""; done; echo; echo; } >$DIR/txn
etcdctl --endpoints=$A $TLS txn <$DIR/txn >/dev/null
etcdctl --endpoints=$A $TLS snapshot save $DIR/before.db
{ echo; for i in $(seq 1 100); do echo "del /registry/ns/prod/$i"; done; echo; echo; } >$DIR/deletes
etcdctl --endpoints=$A $TLS txn <$DIR/deletes >/dev/null
test "$(etcdctl --endpoints=$C $TLS get --prefix /registry/ns/prod -w json | jq '.count // 0')" = 0

etcdutl snapshot restore $DIR/before.db --data-dir $DIR/beside --name beside \
    --initial-cluster beside=http://127.0.0.1:$P1 --initial-advertise-peer-urls http://127.0.0.1:$P1 2>/dev/null
etcd --data-dir $DIR/beside --name beside --listen-peer-urls http://127.0.0.1:$P1 --initial-advertise-peer-urls http://127.0.0.1:$P1 \
    --listen-client-urls http://127.0.0.1:$P2 --advertise-client-urls http://127.0.0.1:$P2 >$DIR/beside.log 2>&1 &
for i in $(seq 1 100); do etcdctl --endpoints=127.0.0.1:$P2 endpoint health >/dev/null 2>&1 && break; sleep 0.2; done
for i in $(seq 1 100); do
    value=$(etcdctl --endpoints=127.0.0.1:$P2 get /registry/ns/prod/$i --print-value-only)
    test "$value" = "object $i"
    etcdctl --endpoints=$A $TLS put /registry/ns/prod/$i "$value" >/dev/null
done
test "$(etcdctl --endpoints=$C $TLS get --prefix /registry/ns/prod -w json | jq .count)" = 100
