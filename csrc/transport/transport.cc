// SPDX-License-Identifier: Apache-2.0
#include "transport/transport.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/exceptions.h"
#include "base/mutex.h"
#include "transport/check.h"
#include "transport/departure.h"
#include "transport/incoming.h"
#include "transport/outgoing.h"
#include "transport/pace.h"
#include "transport/requests.h"
#include "transport/traffic.h"

namespace hvdata {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kTickEvery = std::chrono::milliseconds(100);
constexpr auto kTurnEvery = std::chrono::milliseconds(1);
constexpr auto kMostHushed = std::chrono::seconds(5);

std::string WhereAmI(int rank) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return "rank " + std::to_string(rank) + " on " + host;
}

// A thread inherits the signal mask of its maker. With these blocked no handler of the user's program runs on it, but those of
// crashes: where such a signal is blocked the process dies without a trace.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (int crash : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP}) sigdelset(&blocked, crash);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

class Transport::Impl {
 public:
  Impl(MPI_Comm comm, Inbox* inbox)
      : comm_(comm),
        inbox_(inbox),
        outgoing_(comm, &requests_, &traffic_),
        incoming_(comm, inbox, &requests_, &traffic_),
        departure_(comm) {
    Check(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  }

  void Start() {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    Resume();
    Leave();
    if (thread_.joinable()) thread_.join();
  }

  void Send(int dest, Parcel parcel) {
    MutexLock lock(&mutex_);
    if (leaving_) return;  // `parcel` is destroyed when this lock is gone: parameters outlive locals
    queue_.push_back({dest, std::move(parcel)});
    if (napping_) wake_.NotifyAll();
  }

  void Leave() {
    MutexLock lock(&mutex_);
    leaving_ = true;
    wake_.NotifyAll();
  }

  bool Join(double seconds) {
    MutexLock lock(&mutex_);
    const auto ended = [this] { return mutex_.AssertHeld(), ended_; };
    const auto most = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds < 0 ? 1e6 : seconds));
    while (!over_.WaitFor(&mutex_, most, ended)) {
      if (seconds >= 0) return false;
    }
    return true;
  }

  void Hush() {
    MutexLock lock(&mutex_);
    hushed_ = true;
    wake_.NotifyAll();
    over_.WaitFor(&mutex_, kMostHushed, [this] { return mutex_.AssertHeld(), quiet_ || ended_; });
  }

  void Resume() {
    MutexLock lock(&mutex_);
    hushed_ = false;
    wake_.NotifyAll();
  }

  TransportStats Stats() const { return traffic_.Read(); }

 private:
  struct Queued {
    int dest;
    Parcel parcel;
  };

  void Run() {
    pthread_setname_np(pthread_self(), "hvdata-comm");
    prctl(PR_SET_TIMERSLACK, 1);  // ns: by default a nap of 50 us lasts more than 100 us
    try {
      while (Round()) {
      }
      int finalized = 0;
      MPI_Finalized(&finalized);
      if (!finalized) Check(MPI_Comm_free(&comm_), "MPI_Comm_free");
    } catch (const std::exception& failure) {
      requests_.Abandon();
      sending_.clear();
      inbox_->Broken(WhereAmI(rank_) + ": " + Explained(failure).message +
                     ". No more batches can be moved: look for the first error that any rank printed");
    }
    {
      MutexLock lock(&mutex_);
      leaving_ = true;  // nobody queues any more
      sending_.swap(queue_);
    }
    sending_.clear();
    MutexLock lock(&mutex_);
    ended_ = true;
    over_.NotifyAll();
  }

  // One look at everything. False when the thread may end.
  bool Round() {
    bool leaving;
    {
      MutexLock lock(&mutex_);
      if (hushed_) BeQuiet();
      sending_.swap(queue_);
      leaving = leaving_;
    }
    bool news = !sending_.empty();
    for (Queued& queued : sending_) outgoing_.Submit(queued.dest, std::move(queued.parcel));
    sending_.clear();
    news |= incoming_.Probe();
    news |= requests_.Test();
    if (leaving) {
      // Everything that was sent before Leave() has been submitted: `leaving` was read together with the queue.
      news |= !departure_.Begun();
      departure_.Begin(outgoing_.Headers());
      if (departure_.Over(incoming_.Headers()) && requests_.Empty()) return false;
    }

    const Clock::time_point now = Clock::now();
    if (now >= next_tick_) {
      inbox_->Tick();
      next_tick_ = now + kTickEvery;
    }
    if (news) last_news_ = now;
    Rest(Nap(now - last_news_, !requests_.Empty()));
    if (now >= next_turn_) {
      inbox_->Turn();
      next_turn_ = now + kTurnEvery;
    }
    return true;
  }

  void BeQuiet() REQUIRES(mutex_) {
    quiet_ = true;
    over_.NotifyAll();
    wake_.WaitFor(&mutex_, kMostHushed, [this] { return mutex_.AssertHeld(), !hushed_; });
    quiet_ = hushed_ = false;
  }

  void Rest(std::chrono::microseconds nap) {
    if (nap.count() == 0) {
      sched_yield();
      return;
    }
    MutexLock lock(&mutex_);
    napping_ = true;
    wake_.WaitFor(&mutex_, nap, [this] {
      return mutex_.AssertHeld(), !queue_.empty() || hushed_ || leaving_ != departure_.Begun();
    });
    napping_ = false;
  }

  MPI_Comm comm_;
  Inbox* const inbox_;
  int rank_ = 0;

  // Shared with the callers. Never held while MPI, the inbox or a block's owner is called.
  mutable Mutex mutex_{Mutex::kLast};
  CondVar wake_, over_;
  std::vector<Queued> queue_ GUARDED_BY(mutex_);
  bool napping_ GUARDED_BY(mutex_) = false, leaving_ GUARDED_BY(mutex_) = false, ended_ GUARDED_BY(mutex_) = false;
  bool hushed_ GUARDED_BY(mutex_) = false, quiet_ GUARDED_BY(mutex_) = false;

  // The thread's own.
  Traffic traffic_;
  Requests requests_;
  Outgoing outgoing_;
  Incoming incoming_;
  Departure departure_;
  std::vector<Queued> sending_;
  Clock::time_point last_news_ = Clock::now(), next_tick_ = last_news_ + kTickEvery,
                    next_turn_ = last_news_;

  std::thread thread_;
};

Transport::Transport(MPI_Comm comm, Inbox* inbox) : impl_(std::make_unique<Impl>(comm, inbox)) {
  impl_->Start();  // not before impl_ is set: the inbox may call Send() at once
}
Transport::~Transport() = default;
void Transport::Send(int dest, Parcel parcel) { impl_->Send(dest, std::move(parcel)); }
void Transport::Leave() { impl_->Leave(); }
void Transport::Hush() { impl_->Hush(); }
void Transport::Resume() { impl_->Resume(); }
bool Transport::Join(double seconds) { return impl_->Join(seconds); }
TransportStats Transport::Stats() const { return impl_->Stats(); }

}  // namespace hvdata
