# Look: members, health, status, a few keys.
set -euo pipefail
export ETCDCTL_CACERT=$CACERT ETCDCTL_CERT=$CERT ETCDCTL_KEY=$KEY

for i in $(seq 1 20); do
    etcdctl --endpoints=$A,$B,$C put /registry/pods/default/p$i "{\"pod\": $i}" >/dev/null
done
etcdctl --endpoints=$A,$B,$C member list -w table | tee $DIR/members
test "$(grep -c started $DIR/members)" = 3
etcdctl --endpoints=$A endpoint health --cluster 2>&1 | tee $DIR/health
test "$(grep -c 'is healthy: successfully committed proposal: took = ' $DIR/health)" = 3
etcdctl --endpoints=$A endpoint status --cluster -w table | tee $DIR/status
for column in ENDPOINT 'IS LEADER' 'DB SIZE' 'IN USE' QUOTA ERRORS; do grep -q "$column" $DIR/status; done
etcdctl --endpoints=$A endpoint status --cluster -w json >$DIR/status.json
test "$(jq 'length' $DIR/status.json)" = 3
test "$(jq '[.[] | select(.Status.leader == .Status.header.member_id)] | length' $DIR/status.json)" = 1
test "$(jq '[.[] | select(.Status.dbSize > 0 and .Status.dbSizeInUse > 0)] | length' $DIR/status.json)" = 3
etcdctl --endpoints=$A,$B,$C get /registry --prefix --keys-only --limit=5 | tee $DIR/keys
test "$(grep -c ^/registry/ $DIR/keys)" = 5
