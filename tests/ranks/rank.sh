#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The launcher starts this on every rank. It writes the process id and the command's output to files of the test. It then becomes the
# command by exec, so that the launcher sees the command's exit status and signals.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-${HOROVOD_RANK:-0}}}}
export HVDATA_TEST_RANK="$rank"
read -r pid _ <"${HVDATA_TEST_PROC:-/proc}/self/stat"  # our number in the PID namespace of the test
echo "$pid" >"$HVDATA_TEST_DIR/pid.$rank.part" && mv "$HVDATA_TEST_DIR/pid.$rank.part" "$HVDATA_TEST_DIR/pid.$rank"
if [ -n "$HVDATA_TEST_PRELOAD" ]; then  # of sanitized.py: words before the command
  log=log_path=$HVDATA_TEST_DIR/sanitizer.$rank
  export ASAN_OPTIONS="$ASAN_OPTIONS:$log" UBSAN_OPTIONS="$UBSAN_OPTIONS:$log"
  # shellcheck disable=SC2086
  set -- $HVDATA_TEST_PRELOAD "$@"
fi
if [ -n "$HVDATA_TEST_HOSTS" ]; then  # each rank gets the host name of rank modulo the number of hosts
  set -- unshare --uts sh -c 'hostname "host$0" && exec "$@"' "$((rank % HVDATA_TEST_HOSTS))" "$@"
fi
exec "$@" >"$HVDATA_TEST_DIR/out.$rank" 2>"$HVDATA_TEST_DIR/err.$rank" </dev/null
