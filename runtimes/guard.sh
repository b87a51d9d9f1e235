# The guard: see process.go.
trap '' TERM INT HUP
all=' '
while read -r sign id; do
	case $sign in
	+) all="$all$id ";;
	-) all="${all%% $id *} ${all#* $id }";;
	esac
done
[ "$all" = ' ' ] && exit
for id in $all; do kill -TERM -$id; done
sleep 3
for id in $all; do kill -KILL -$id; done
