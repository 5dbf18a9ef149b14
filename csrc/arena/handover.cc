// SPDX-License-Identifier: Apache-2.0
#include "arena/handover.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace hvdata {
namespace {

constexpr size_t kMostFds = 4;
constexpr int kBacklog = 4096;    // more than the ranks of a host
constexpr size_t kMostUsers = 4;  // in Others

// A name that begins with a zero byte names no file.
socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof address->sun_path - 1);
  std::memcpy(address->sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

int NewSocket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

// A message of a few bytes, with room for descriptors.
struct Packet {
  Packet(void* bytes, size_t size, size_t control_size) : part{bytes, size} {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control_size > 0 ? control : nullptr;
    message.msg_controllen = control_size;
  }
  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  msghdr message{};
};

// The user of the process at the other end.
uid_t UserBehind(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.uid : static_cast<uid_t>(-1);
}

// Waits for one of these events. False: none came in time.
bool Await(int fd, short events, Handover::Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd p{fd, events, 0};
    const int ready = poll(&p, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready > 0) return (p.revents & events) != 0;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace

std::string RandomDigits(size_t bytes) {
  std::string random(bytes, '\0'), digits;
  if (getrandom(&random[0], bytes, 0) != static_cast<ssize_t>(bytes)) return "";
  for (const char byte : random) {
    digits += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

void Handover::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

Handover Handover::To(const std::string& name, Deadline deadline) {
  Handover to(name.empty() ? -1 : NewSocket(), deadline);
  to.name_ = name;
  if (to.ok()) to.Reach(Deadline::min());
  return to;
}

// Connects if there is no connection yet. False: not connected yet. If this is not ok() after that, it will never
// connect.
bool Handover::Reach(Deadline deadline) {
  if (name_.empty()) return true;
  sockaddr_un address;
  const socklen_t size = AbstractAddress(name_, &address);
  while (connect(fd_, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) Close();  // EAGAIN: the listener's backlog is full for the moment
    if (!ok() || std::chrono::steady_clock::now() > deadline) return false;
    usleep(1000);
  }
  name_.clear();
  if (UserBehind(fd_) != geteuid()) Close();  // a listener of another user would turn this process away
  return ok();
}

bool Handover::Ready(short events) { return Reach(deadline_) && Await(fd_, events, deadline_); }

bool Handover::Send(const void* bytes, size_t size, const std::vector<int>& fds) {
  if (!ok() || fds.size() > kMostFds || !Ready(POLLOUT)) return false;
  Packet packet(const_cast<void*>(bytes), size, fds.empty() ? 0 : CMSG_SPACE(fds.size() * sizeof(int)));
  if (!fds.empty()) {
    cmsghdr* const header = CMSG_FIRSTHDR(&packet.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(fd_, &packet.message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool Handover::Receive(void* bytes, size_t size, size_t count, std::vector<int>* fds) {
  fds->clear();
  if (!ok() || !Ready(POLLIN)) return false;
  Packet packet(bytes, size, sizeof packet.control);
  msghdr& message = packet.message;
  const ssize_t received = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  if (received >= 0) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      const size_t before = fds->size();
      fds->resize(before + n);
      std::memcpy(fds->data() + before, CMSG_DATA(header), n * sizeof(int));
    }
  }
  const bool cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  if (received == static_cast<ssize_t>(size) && fds->size() == count && !cut) return true;
  for (const int fd : *fds) close(fd);
  fds->clear();
  return false;
}

Listener::Listener() : fd_(NewSocket()) {
  if (fd_ < 0) return;
  const std::string name = RandomDigits(16);
  sockaddr_un address;
  const socklen_t size = AbstractAddress(name, &address);
  if (name.empty() || bind(fd_, reinterpret_cast<const sockaddr*>(&address), size) != 0 || listen(fd_, kBacklog) != 0) {
    return;
  }
  name_ = name;
}

Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
}

void Listener::Refuse() { shutdown(fd_, SHUT_RD); }

Handover Listener::Accept(Handover::Deadline deadline) {
  for (bool more = fd_ >= 0; more && Await(fd_, POLLIN, deadline); more = std::chrono::steady_clock::now() < deadline) {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) break;
    if (fd < 0) continue;  // the caller has hung up
    const uid_t user = UserBehind(fd);
    if (user == geteuid()) return Handover(fd, deadline);
    close(fd);
    ++others_.count;
    if (others_.users.size() < kMostUsers) others_.users.insert(user);
  }
  return Handover();
}

}  // namespace hvdata
