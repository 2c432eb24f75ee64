#!/usr/bin/env bash
# Permit a role of a stream to a user of Apache Kafka, by Kafka's own kafka-acls.sh.
# The permissions come from `streaming-pca topics acls`; docs/how-to/secure.md tells of the roles.
set -euo pipefail

usage="usage: acls.sh --bootstrap-server HOST:PORT --config FILE --role ROLE --principal User:NAME
               [--command-config FILE] [--output TOPIC] [--stream NAME]

  --bootstrap-server  a broker
  --command-config    properties by which kafka-acls.sh connects, as a user who may alter the cluster
  --config            settings file of the streams; for the role worker, its user may describe the inputs
  --role              producer, reader, dashboard, auditor, projector, worker or operator
  --principal         user to permit
  --output            topic of projections, for the role projector
  --stream            one stream of the file; by default all of them

Harmless when repeated. Programs: kafka-acls.sh (or kafka-acls) and streaming-pca, of the PATH, or as the
environment variables KAFKA_ACLS and STREAMING_PCA name them."

refuse() {
  echo "acls.sh: $1" >&2
  exit 2
}

kafka=() command=(topics acls) given=" "
while (($#)); do
  case $1 in
    -h | --help) echo "$usage" && exit 0 ;;
    --bootstrap-server | --command-config) list=kafka ;;
    --config | --role | --principal | --output | --stream) list=command ;;
    *) refuse "unknown argument '$1': see acls.sh --help" ;;
  esac
  (($# > 1)) || refuse "$1 needs a value: see acls.sh --help"
  if [[ $list == kafka ]]; then kafka+=("$1" "$2"); else command+=("$1" "$2"); fi
  given+="$1 "
  shift 2
done
for needed in --bootstrap-server --config --role --principal; do
  [[ $given == *" $needed "* ]] || refuse "$needed is missing: see acls.sh --help"
done

acls=${KAFKA_ACLS:-$(command -v kafka-acls.sh || command -v kafka-acls || true)}
[[ -n $acls ]] || refuse "kafka-acls.sh is not on the PATH: add Kafka's bin directory, or set KAFKA_ACLS"

lines=$("${STREAMING_PCA:-streaming-pca}" "${command[@]}")
while IFS= read -r line; do
  # Names may be quoted as for a shell: xargs splits the line.
  xargs "$acls" "${kafka[@]}" --add --force <<<"$line" >/dev/null
done <<<"$lines"
