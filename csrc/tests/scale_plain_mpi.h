// SPDX-License-Identifier: Apache-2.0
// The same rows by MPI's own calls: the cost for as many processes on this machine without this library.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "tests/scale_process.h"
#include "tests/scale_rows.h"

namespace hvdata {

struct PlainEpoch {
  double first = 0, last = 0;  // when a trainer had its first and its last share
  uint64_t wrong = 0;          // rows that have wrong contents
};

// Collective. Process 0 makes global batches and has up to `window` steps under way. All other processes take one share
// of each step and check its rows, as in an epoch of the library.
class PlainMpi {
 public:
  PlainMpi(const MadeUpRows* rows, int64_t per_share, int64_t steps, int64_t window)
      : rows_(rows), per_share_(static_cast<size_t>(per_share)), steps_(steps), window_(window) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &processes_);
  }

  PlainEpoch Run(uint64_t epoch) { return rank_ == 0 ? (Send(epoch), PlainEpoch{}) : Receive(epoch); }

 private:
  size_t share_bytes() const { return per_share_ * rows_->bytes(); }

  void Send(uint64_t epoch) {
    const auto shares = static_cast<size_t>(processes_ - 1);
    std::vector<char> memory(static_cast<size_t>(window_) * shares * share_bytes());
    std::vector<MPI_Request> requests(static_cast<size_t>(window_) * shares, MPI_REQUEST_NULL);
    for (int64_t step = 0; step < steps_; ++step) {
      const size_t slot = static_cast<size_t>(step % window_) * shares;
      MPI_Waitall(static_cast<int>(shares), &requests[slot], MPI_STATUSES_IGNORE);
      const size_t first_row = static_cast<size_t>(step) * shares * per_share_;
      for (size_t i = 0; i < shares * per_share_; ++i) {
        rows_->Make(0, 0, epoch, first_row + i, &memory[slot * share_bytes() + i * rows_->bytes()]);
      }
      for (size_t t = 0; t < shares; ++t) {
        MPI_Isend(&memory[(slot + t) * share_bytes()], static_cast<int>(share_bytes()), MPI_CHAR,
                  static_cast<int>(t + 1), 1, MPI_COMM_WORLD, &requests[slot + t]);
      }
    }
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  }

  PlainEpoch Receive(uint64_t epoch) {
    const auto shares = static_cast<size_t>(processes_ - 1), me = static_cast<size_t>(rank_ - 1);
    std::vector<char> memory(static_cast<size_t>(window_) * share_bytes());
    std::vector<MPI_Request> requests(static_cast<size_t>(window_), MPI_REQUEST_NULL);
    const auto ask = [&](int64_t step) {
      const auto slot = static_cast<size_t>(step % window_);
      if (step >= steps_) return;
      MPI_Irecv(&memory[slot * share_bytes()], static_cast<int>(share_bytes()), MPI_CHAR, 0, 1, MPI_COMM_WORLD,
                &requests[slot]);
    };
    for (int64_t step = 0; step < window_; ++step) ask(step);
    PlainEpoch told;
    for (int64_t step = 0; step < steps_; ++step) {
      const auto slot = static_cast<size_t>(step % window_);
      MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
      told.last = Now();
      if (step == 0) told.first = told.last;
      for (size_t i = 0; i < per_share_; ++i) {
        const char* const row = &memory[slot * share_bytes() + i * rows_->bytes()];
        told.wrong += !rows_->Is(row, 0, 0, epoch, (static_cast<size_t>(step) * shares + me) * per_share_ + i);
      }
      ask(step + window_);
    }
    return told;
  }

  const MadeUpRows* const rows_;
  const size_t per_share_;
  const int64_t steps_, window_;
  int rank_ = 0, processes_ = 1;
};

}  // namespace hvdata
