# Defragmentation on a condition: a rule that does not hold touches nothing, one that does goes through all, leader last.
set -euo pipefail

etcd-defrag --endpoints=$A --cluster --cacert=$CACERT --cert=$CERT --key=$KEY \
    --defrag-rule="dbQuotaUsage > 0.5 && dbSize - dbSizeInUse > 200*1024*1024" 2>&1 | tee $DIR/skipped
test "$(grep -c 'Evaluation result is false, so skipping endpoint: ' $DIR/skipped)" = 3
grep -q 'The defragmentation is successful.' $DIR/skipped

etcd-defrag --endpoints=$A --cluster --cacert=$CACERT --cert=$CERT --key=$KEY --defrag-rule="dbSize > 0" 2>&1 | tee $DIR/done
test "$(grep -c 'Finished defragmenting etcd endpoint ' $DIR/done)" = 3

leader=$(etcdctl --endpoints=$A,$B,$C --cacert=$CACERT --cert=$CERT --key=$KEY endpoint status -w json |
    jq -r '.[] | select(.Status.leader == .Status.header.member_id) | .Endpoint')
grep 'Finished defragmenting etcd endpoint ' $DIR/done | tail -n 1 | grep -q "$leader"

if etcd-defrag --endpoints=$A --cluster --cacert=$CACERT --cert=$CERT --key=$KEY --defrag-rule="dbSize >" >$DIR/refused 2>&1; then
    echo 'a rule that cannot be read was taken'
    exit 1
fi
! grep -q 'Defragmenting endpoint' $DIR/refused
