#!/bin/bash
# A run whose processes each live in a network namespace of their own, behind a link that `tc` slows down.
#
#   sudo scripts/slow_network.sh PROCESSES LATENCY_MS MBIT_PER_S [KEY=VALUE ...]
#   sudo scripts/slow_network.sh 4 5 100 algo=allreduce compress=topk num_workers=4
#
# Every process sends at most MBIT_PER_S (tbf), and what it sends is LATENCY_MS later (netem; 0: no delay). The namespaces and
# the bridge between them are made here and removed at the end; no interface of the machine itself is touched. Needs root,
# iproute2, and the kernel modules sch_tbf and (for a delay) sch_netem. Without them: network.latency_ms, network.bandwidth_gbps.
set -euo pipefail

if [ $# -lt 3 ]; then
  sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//' >&2
  exit 2
fi
processes=$1 latency_ms=$2 mbit=$3
shift 3
name=decentral-$$ subnet=10.77.0 torchrun=${TORCHRUN:-torchrun}
for tool in ip tc "$torchrun"; do
  command -v "$tool" > /dev/null || { echo "slow_network.sh needs $tool, which is not installed" >&2; exit 2; }
done

remove() {
  kill $(jobs -p) 2> /dev/null || true
  wait 2> /dev/null || true
  for space in $(ip netns list | awk '{print $1}' | grep "^$name-" || true); do ip netns delete "$space"; done
}
trap remove EXIT

ip netns add "$name-switch"
ip -n "$name-switch" link add bridge type bridge
ip -n "$name-switch" link set bridge up
for ((rank = 0; rank < processes; rank++)); do
  space=$name-$rank
  ip netns add "$space"
  ip link add eth0 netns "$space" type veth peer name "port$rank" netns "$name-switch"
  ip -n "$name-switch" link set "port$rank" master bridge up
  ip -n "$space" address add "$subnet.$((rank + 1))/24" dev eth0
  ip -n "$space" link set lo up
  ip -n "$space" link set eth0 up
  # a bucket of 10 ms, and a queue that loses nothing of what a process sends at once
  tc -n "$space" qdisc add dev eth0 root handle 1: tbf rate "${mbit}mbit" burst "$((mbit * 1250 > 3000 ? mbit * 1250 : 3000))" limit 64mb
  if [ "$latency_ms" != 0 ]; then
    tc -n "$space" qdisc add dev eth0 parent 1:1 handle 10: netem delay "${latency_ms}ms" limit 100000
  fi
done

for ((rank = processes - 1; rank >= 0; rank--)); do
  ip netns exec "$name-$rank" env GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 "$torchrun" --nnodes="$processes" --node-rank="$rank" \
    --nproc-per-node=1 --rdzv-backend=static --master-addr="$subnet.1" --master-port=29500 -m decentral \
    "$@" network.transport=torch device=cpu &
  last=$!
done
wait "$last" # rank 0
