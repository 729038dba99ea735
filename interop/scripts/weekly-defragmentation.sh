# Weekly defragmentation, one job a member, followers first; and the careless form.
set -euo pipefail
export ETCDCTL_CACERT=$CACERT ETCDCTL_CERT=$CERT ETCDCTL_KEY=$KEY

is_leader() {
    test "$(etcdctl --endpoints=$1 endpoint status --write-out=json | jq '.[0].Status.leader == .[0].Status.header.member_id')" = true
}
job() {
    THIS=$1
    if is_leader $THIS; then
        OTHER=$(etcdctl --endpoints=$2 endpoint status | cut -d, -f2 | tr -d ' ')
        etcdctl --endpoints=$THIS move-leader $OTHER
        sleep 1
        ! is_leader $THIS
    fi
    etcdctl --endpoints=$THIS defrag
    etcdctl --endpoints=$THIS alarm disarm
}
for i in $(seq 1 50); do etcdctl --endpoints=$A put /registry/x $i >/dev/null; done
followers= leader=
for member in $A $B $C; do if is_leader $member; then leader=$member; else followers="$followers $member"; fi; done
set -- $followers
job $1 $2 && job $2 $1 && job $leader $1

etcdctl --endpoints=$A,$B,$C defrag --cluster | tee $DIR/defrag
test "$(grep -c 'Finished defragmenting etcd member\[' $DIR/defrag)" = 3
etcdctl --endpoints=$A,$B,$C endpoint health
