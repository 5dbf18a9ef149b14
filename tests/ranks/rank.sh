#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the launcher starts on every rank: leaves the process id and the output of the command where the test finds them.
# By exec, so that the command is the rank: its exit status and signals are what the launcher sees.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-${HOROVOD_RANK:-0}}}}
export HVDATA_TEST_RANK="$rank"
read -r pid _ <"${HVDATA_TEST_PROC:-/proc}/self/stat"  # our number where the test runs
echo "$pid" >"$HVDATA_TEST_DIR/pid.$rank.part" && mv "$HVDATA_TEST_DIR/pid.$rank.part" "$HVDATA_TEST_DIR/pid.$rank"
if [ -n "$HVDATA_TEST_PRELOAD" ]; then  # sanitized.py; the words stand before the command
  log=log_path=$HVDATA_TEST_DIR/sanitizer.$rank
  export ASAN_OPTIONS="$ASAN_OPTIONS:$log" UBSAN_OPTIONS="$UBSAN_OPTIONS:$log"
  # shellcheck disable=SC2086
  set -- $HVDATA_TEST_PRELOAD "$@"
fi
if [ -n "$HVDATA_TEST_HOSTS" ]; then  # a host name of the rank's own: its host is the rank modulo their number
  set -- unshare --uts sh -c 'hostname "host$0" && exec "$@"' "$((rank % HVDATA_TEST_HOSTS))" "$@"
fi
exec "$@" >"$HVDATA_TEST_DIR/out.$rank" 2>"$HVDATA_TEST_DIR/err.$rank" </dev/null
