#!/usr/bin/env bash
# Format the broker's storage at the first start, with its users, and start it. The image's own script cannot add users.
# Arguments: names of users, each with a password in /passwords/NAME/password.
set -euo pipefail
settings=/etc/streaming-pca/kafka/server.properties

# A file, because the arguments of a process can be seen by others.
umask 077
arguments=$(mktemp)
{
    printf '%s\n' --ignore-formatted "--cluster-id=$CLUSTER_ID" "--config=$settings"
    for user in "$@"; do
        printf -- '--add-scram=SCRAM-SHA-512=[name=%s,password=%s]\n' "$user" "$(<"/passwords/$user/password")"
    done
} >"$arguments"
/opt/kafka/bin/kafka-storage.sh format "@$arguments"
rm "$arguments"

exec /opt/kafka/bin/kafka-server-start.sh "$settings"
