// SPDX-License-Identifier: Apache-2.0
#include "transport/transport.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "base/exceptions.h"
#include "base/threads.h"
#include "transport/check.h"

namespace hvdata {
namespace {

constexpr auto kTickEvery = std::chrono::milliseconds(100);
constexpr auto kLookEvery = std::chrono::milliseconds(1);
constexpr auto kMostHushed = std::chrono::seconds(5);

// Returns how long to sleep after nothing has happened for `quiet`. MPI has no portable way to sleep until a message
// comes. Zero: yield the core once, then look again. `transferring`: some requests are not complete. Over sockets these
// proceed only while a thread polls. So the thread polls longer before it naps. A nap is a fifth of `quiet`, at most 1
// ms. From 100 ms on, a nap is a hundredth of `quiet`, at most 5 ms. If data comes every 20 ms, the thread looks some
// 40 times between. An idle thread wakes 200 times a second, for less than 0.5 % of a core.
std::chrono::microseconds Nap(std::chrono::nanoseconds quiet, bool transferring) {
  using namespace std::chrono_literals;
  using std::chrono::microseconds;
  if (quiet < (transferring ? 5ms : 50us)) return 0us;
  if (transferring && quiet < 1000ms) return 50us;
  const auto part = std::max<std::chrono::nanoseconds>(std::min<std::chrono::nanoseconds>(quiet / 5, 1ms), quiet / 100);
  return std::clamp<microseconds>(std::chrono::duration_cast<microseconds>(part), 50us, 5ms);
}

}  // namespace

Transport::Transport(MPI_Comm comm, Inbox* inbox)
    : comm_(comm), inbox_(inbox), rank_(RankIn(comm)), incoming_(SizeOf(comm)), sent_(SizeOf(comm)) {
  next_tick_ += kTickEvery;
}

void Transport::Begin(std::function<void()> tick, std::function<bool()> connected) {
  tick_ = std::move(tick);
  connected_ = std::move(connected);
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { Run(); });
}

Transport::~Transport() {
  Resume();
  Leave();
  if (thread_.joinable()) thread_.join();
}

void Transport::Send(int dest, Packet packet) {
  MutexLock lock(&mutex_);
  if (leaving_) return;  // `packet` is destroyed after the lock is released, because parameters outlive locals
  queue_.push_back({dest, std::move(packet)});
  if (napping_) wake_.NotifyAll();
}

void Transport::Leave() {
  MutexLock lock(&mutex_);
  leaving_ = true;
  wake_.NotifyAll();
}

bool Transport::Join(std::chrono::nanoseconds patience) {
  MutexLock lock(&mutex_);
  return over_.WaitFor(&mutex_, patience, [this] { return mutex_.AssertHeld(), ended_; });
}

void Transport::Hush() {
  MutexLock lock(&mutex_);
  hushed_ = true;
  wake_.NotifyAll();
  over_.WaitFor(&mutex_, kMostHushed, [this] { return mutex_.AssertHeld(), quiet_ || ended_; });
}

void Transport::Resume() {
  MutexLock lock(&mutex_);
  hushed_ = false;
  wake_.NotifyAll();
}

void Transport::Run() {
  pthread_setname_np(pthread_self(), "hvdata-comm");
  prctl(PR_SET_TIMERSLACK, 1);  // ns: by default a nap of 50 us lasts more than 100 us
  std::string failed;
  try {
    while (Round()) {
    }
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) Check(MPI_Comm_free(&comm_), "MPI_Comm_free");
  } catch (const PeerFailure& failure) {
    failed = failure.what() + inbox_->Name(failure.peer) + failure.after;
  } catch (const std::exception& failure) {
    failed = Explained(failure).message;
  }
  if (!failed.empty()) {
    requests_.Abandon();
    inbox_->Break(failed);
  }
  sending_.clear();
  {
    MutexLock lock(&mutex_);
    leaving_ = true;  // Send() queues no more
    sending_.swap(queue_);
  }
  sending_.clear();
  MutexLock lock(&mutex_);
  ended_ = true;
  over_.NotifyAll();
}

// Does one round of the thread's work. False: the thread may end.
bool Transport::Round() {
  if (!connected_()) {  // the process is about to end, and a call of MPI might never return
    std::this_thread::sleep_for(kTickEvery);
    return true;
  }
  bool leaving;
  {
    MutexLock lock(&mutex_);
    if (hushed_) BeQuiet();
    sending_.swap(queue_);
    leaving = leaving_;
  }
  bool news = !sending_.empty();
  SubmitAll();
  news |= Probe();
  news |= requests_.Test();
  if (leaving) {
    // Everything that was sent before Leave() has been submitted, because `leaving` was read together with the queue.
    news |= !counting_;
    if (AllHaveLeft() && requests_.Empty()) return false;
  }

  const Clock::time_point now = Clock::now();
  if (now >= next_tick_) {
    tick_();
    next_tick_ = now + kTickEvery;
  }
  if (news) last_news_ = now;
  Rest(Nap(now - last_news_, !requests_.Empty()));
  if (now >= next_look_) {
    inbox_->Fetch();  // messages that no thread waits for
    next_look_ = now + kLookEvery;
  }
  return true;
}

// True when every rank has left, and all header messages for this rank have come. After a plain barrier messages may
// still be on their way. So the ranks compute sums instead. Each rank gives the number of header messages that it has
// sent to each rank. It gets the number that it must receive. MPI opens a tree of connections for the sums, instead of
// a connection for each pair.
bool Transport::AllHaveLeft() {
  constexpr const char* kCall = "MPI_Ireduce_scatter_block";
  if (!std::exchange(counting_, true))
    Check(MPI_Ireduce_scatter_block(sent_.data(), &expected_, 1, MPI_UINT64_T, MPI_SUM, comm_, &count_), kCall);
  int done = 0;
  if (!counted_) Check(MPI_Test(&count_, &done, MPI_STATUS_IGNORE), kCall);
  counted_ = counted_ || done != 0;
  return counted_ && came_ == expected_;
}

void Transport::BeQuiet() {
  quiet_ = true;
  over_.NotifyAll();
  wake_.WaitFor(&mutex_, kMostHushed, [this] { return mutex_.AssertHeld(), !hushed_; });
  quiet_ = hushed_ = false;
}

void Transport::Rest(std::chrono::microseconds nap) {
  if (nap.count() == 0) {
    sched_yield();
    return;
  }
  MutexLock lock(&mutex_);
  napping_ = true;
  wake_.WaitFor(&mutex_, nap,
                [this] { return mutex_.AssertHeld(), !queue_.empty() || hushed_ || leaving_ != counting_; });
  napping_ = false;
}

}  // namespace hvdata
