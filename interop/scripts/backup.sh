# Backups on a timer: saved, looked at, refused when they went backwards, thrown away when old; and damaged ones.
set -euo pipefail
export ETCDCTL_CACERT=$CACERT ETCDCTL_CERT=$CERT ETCDCTL_KEY=$KEY
mkdir $DIR/backups

for i in $(seq 1 100); do etcdctl --endpoints=$A,$B,$C put /registry/cm/$i "$(seq 1 200)" >/dev/null; done
etcdctl snapshot save $DIR/backups/one.db --endpoints=$A
etcdctl --endpoints=$A put /registry/cm/101 more
etcdctl snapshot save $DIR/backups/two.db --endpoints=$A

last=0
for file in one two; do
    etcdutl snapshot status $DIR/backups/$file.db -w json | tee $DIR/$file.json
    for field in hash revision totalKey totalSize; do test "$(jq ".$field > 0" $DIR/$file.json)" = true; done
    revision=$(jq .revision $DIR/$file.json)
    test $revision -gt $last
    last=$revision
done
test $(jq .totalKey $DIR/two.json) -ge $(jq .totalKey $DIR/one.json)
etcdutl snapshot status $DIR/backups/two.db -w table
find $DIR/backups -mtime +7 -delete
test "$(ls $DIR/backups | wc -l)" = 2

# Files that are no backups. Go's tool takes most damaged ones for good; Dolmen's has to refuse them all, in one line.
: >$DIR/empty.db
head -c 20000 $DIR/backups/two.db >$DIR/cut.db
cp $DIR/backups/two.db $DIR/flipped.db
printf '\xff' | dd of=$DIR/flipped.db bs=1 seek=$(($(stat -c %s $DIR/flipped.db) / 2)) conv=notrunc status=none
if test "${DOLMEN:-}" = 1; then
    for file in empty cut flipped; do
        if etcdutl snapshot status $DIR/$file.db >$DIR/out 2>$DIR/err; then
            echo "$file.db was taken for good"
            exit 1
        fi
        test ! -s $DIR/out
        test "$(grep -c ^Error: $DIR/err)" = 1
        cat $DIR/err
    done
fi
