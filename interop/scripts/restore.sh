# Restore on three machines, into a new cluster; and the form for Kubernetes, whose watchers must not believe what they knew.
set -euo pipefail
TLS="--cacert=$CACERT --cert=$CERT --key=$KEY"
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true' EXIT

for i in $(seq 1 50); do etcdctl --endpoints=$A $TLS put /registry/secrets/$i "value $i" >/dev/null; done
etcdctl --endpoints=$A $TLS snapshot save $DIR/snap.db
etcdctl --endpoints=$A $TLS del --prefix /registry/secrets
test -z "$(etcdctl --endpoints=$A $TLS get --prefix /registry/secrets)"

CLUSTER=m1=http://127.0.0.1:$P1,m2=http://127.0.0.1:$P2,m3=http://127.0.0.1:$P3
restore() { # name, peer port, more flags
    name=$1 port=$2
    shift 2
    etcdutl snapshot restore $DIR/snap.db --name $name --initial-cluster $CLUSTER \
        --initial-advertise-peer-urls http://127.0.0.1:$port --initial-cluster-token new-token --data-dir $DIR/$name "$@" 2>>$DIR/restore.log
}
start() { # name, peer port, client port
    etcd --name $1 --data-dir $DIR/$1 --listen-peer-urls http://127.0.0.1:$2 --initial-advertise-peer-urls http://127.0.0.1:$2 \
        --listen-client-urls http://127.0.0.1:$3 --advertise-client-urls http://127.0.0.1:$3 >$DIR/$1.log 2>&1 &
}
NEW=127.0.0.1:$P4,127.0.0.1:$P5,127.0.0.1:$P6
ready() { for i in $(seq 1 100); do etcdctl --endpoints=$NEW endpoint health >/dev/null 2>&1 && return; sleep 0.2; done; return 1; }

restore m1 $P1; restore m2 $P2; restore m3 $P3
# A folder that is in use is refused and left as it is.
before=$(find $DIR/m1 -type f -exec sha256sum {} + | sort | sha256sum)
if restore m1 $P1; then echo 'a folder with data was overwritten'; exit 1; fi
grep -q "not empty or could not be read" $DIR/restore.log
test "$before" = "$(find $DIR/m1 -type f -exec sha256sum {} + | sort | sha256sum)"

start m1 $P1 $P4; start m2 $P2 $P5; start m3 $P3 $P6
ready
test "$(etcdctl --endpoints=$NEW get --prefix /registry/secrets --keys-only | grep -c ^/registry)" = 50
old=$(etcdctl --endpoints=$A $TLS member list -w json | jq .header.cluster_id)
new=$(etcdctl --endpoints=$NEW member list -w json | jq .header.cluster_id)
test "$old" != "$new"
test "$(etcdctl --endpoints=$NEW member list | grep -c started)" = 3
kill $(jobs -p); wait || true

rm -rf $DIR/m1 $DIR/m2 $DIR/m3
for i in 1 2 3; do port=P$i; restore m$i ${!port} --bump-revision 1000000000 --mark-compacted; done
start m1 $P1 $P4; start m2 $P2 $P5; start m3 $P3 $P6
ready
test "$(etcdctl --endpoints=$NEW get --prefix /registry/secrets -w json | jq '.header.revision > 1000000000')" = true
if etcdctl --endpoints=$NEW watch --prefix /registry --rev=10 >$DIR/watch 2>&1; then exit 1; fi
grep -q 'required revision has been compacted' $DIR/watch
