# Watch: history from a revision, then live events; below the compaction an error.
set -euo pipefail
export ETCDCTL_CACERT=$CACERT ETCDCTL_CERT=$CERT ETCDCTL_KEY=$KEY
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true' EXIT

rev=$(etcdctl --endpoints=$A put /registry/pods/a 1 -w json | jq .header.revision)
etcdctl --endpoints=$B put /registry/pods/b 1 >/dev/null
etcdctl --endpoints=$B put /registry/services/c 1 >/dev/null
etcdctl --endpoints=$C watch --prefix /registry/pods/ --rev=$rev >$DIR/events &
sleep 1
etcdctl --endpoints=$A put /registry/pods/d live >/dev/null
etcdctl --endpoints=$A del /registry/pods/a >/dev/null
for i in $(seq 1 50); do grep -q DELETE $DIR/events && break; sleep 0.1; done
diff $DIR/events - <<'EVENTS'
PUT
/registry/pods/a
1
PUT
/registry/pods/b
1
PUT
/registry/pods/d
live
DELETE
/registry/pods/a

EVENTS

now=$(etcdctl --endpoints=$A get x -w json | jq .header.revision)
etcdctl --endpoints=$A compact $now
code=0
etcdctl --endpoints=$A watch --prefix /registry/pods/ --rev=$rev >$DIR/out 2>$DIR/err || code=$?
test $code != 0
grep -q 'etcdserver: mvcc: required revision has been compacted' $DIR/err
