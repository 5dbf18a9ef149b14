// SPDX-License-Identifier: Apache-2.0
// A stranger's end of a connection to a Listener (arena/handover.h).
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace hvdata {

// Calls the listener of this name; -1: refused.
inline int Call(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return fd;
  close(fd);
  return -1;
}

// Sends bytes, and up to 16 copies of standard error's descriptor, which the receiver may close. False: the listener has hung up.
inline bool Say(int fd, const std::string& bytes, size_t fds = 0) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fds > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds * sizeof(int));
    for (size_t i = 0; i < fds; ++i) std::memcpy(CMSG_DATA(header) + i * sizeof(int), "\2\0\0\0", sizeof(int));
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

}  // namespace hvdata
