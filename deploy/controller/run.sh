#!/bin/sh
# Runs one of RocketMQ's controllers: run.sh NUMBER ADDRESSES DIRECTORY
# NUMBER is its place, from 0 on, in ADDRESSES: where all controllers listen, with ";" between them.
set -eu
number=$1 addresses=$2 directory=$3

place=0 peers=
IFS=";"
for address in $addresses; do
  peers="$peers${peers:+;}n$place-$address"
  place=$((place + 1))
done
cat > "$directory/controller.conf" <<END
controllerDLegerGroup=controllers
controllerDLegerSelfId=n$number
controllerDLegerPeers=$peers
controllerStorePath=$directory/store
mappedFileSize=16777216
END
# What RocketMQ needs with Java versions above 8; its logs are in DIRECTORY/logs.
exec java -Xms128m -Xmx128m -XX:+UseSerialGC \
  --add-exports=java.base/sun.nio.ch=ALL-UNNAMED \
  --add-opens=java.base/java.nio=ALL-UNNAMED \
  --add-opens=java.base/sun.nio.ch=ALL-UNNAMED \
  --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED \
  "-Duser.home=$directory" "-Drocketmq.home.dir=$directory" \
  -cp "${ROCKETMQ_LIB:-/opt/rocketmq/lib}/*" \
  org.apache.rocketmq.controller.ControllerStartup -c "$directory/controller.conf"
