// SPDX-License-Identifier: Apache-2.0
#include "arena/handover.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace hvdata {
namespace {

constexpr int kKind = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

// Calls bind() or connect() with the address of this name. A path that begins with a zero byte names no file.
template <typename Function>
bool AtName(Function function, const Descriptor& socket, uint64_t name) {
  const std::string path = "horovod_data." + std::to_string(name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  return function(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0;
}

bool IsOfThisUser(const Descriptor& peer) {
  ucred its{};
  socklen_t size = sizeof its;
  if (getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &its, &size) != 0) return false;
  if (its.uid == geteuid()) return true;
  errno = EACCES;
  return false;
}

// A greeting, with room for descriptors.
struct Packet {
  explicit Packet(Greeting* greeting) : part{greeting, sizeof *greeting} {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostHanded * sizeof(int))] = {};
  msghdr message{};
};

}  // namespace

Descriptor Listen(uint64_t name) {
  Descriptor listener(socket(AF_UNIX, kKind, 0));
  if (listener && AtName(bind, listener, name) && listen(listener.get(), kBacklog) == 0) return listener;
  return Descriptor();
}

Descriptor Call(uint64_t name) {
  Descriptor peer(socket(AF_UNIX, kKind, 0));
  if (peer && AtName(connect, peer, name)) return peer;
  return Descriptor();
}

Descriptor Accept(const Descriptor& listener) {
  return Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

bool HandOver(const Descriptor& peer, const Greeting& greeting, std::initializer_list<int> fds) {
  if (!IsOfThisUser(peer)) return false;
  Greeting sent = greeting;
  Packet packet(&sent);
  packet.message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&packet.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.begin(), fds.size() * sizeof(int));
  return sendmsg(peer.get(), &packet.message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof greeting);
}

bool TakeOver(const Descriptor& peer, Greeting* greeting, Descriptor* fds, size_t count) {
  if (!IsOfThisUser(peer)) return false;
  Packet packet(greeting);
  const ssize_t size = recvmsg(peer.get(), &packet.message, MSG_CMSG_CLOEXEC);
  if (size < 0) return false;
  size_t came = 0;
  Descriptor all[kMostHanded];
  const cmsghdr* const header = CMSG_FIRSTHDR(&packet.message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    for (; came < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++came) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + came * sizeof fd, sizeof fd);
      all[came] = Descriptor(fd);
    }
  }
  const bool cut = (packet.message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  if (size != static_cast<ssize_t>(sizeof *greeting) || came != count || cut) return false;
  for (size_t i = 0; i < count; ++i) fds[i] = std::move(all[i]);
  return true;
}

}  // namespace hvdata
