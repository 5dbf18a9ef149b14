// SPDX-License-Identifier: Apache-2.0
// A file of its own, because HVDATA_BUILD changes with every file of csrc/ (cmake/Hvdata.cmake).

// The mark of the build that made this library. The library of the ops beside it has a mark, too. Python refuses ops
// with another mark.
extern "C" const char* hvdata_build(void) { return HVDATA_BUILD; }
