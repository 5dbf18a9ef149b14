// SPDX-License-Identifier: Apache-2.0
// Makes a struct from a list of FIELD(type, name, default). Python gives the values as numbers, by name.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>

#define HVDATA_MEMBER(type, name, value) type name = value;
// Sets a field of the local struct `taken` from the local map `numbers`.
#define HVDATA_TAKE(type, name, value) TakeNumber(numbers, #name, &taken.name);

namespace hvdata {

// Throws if there is no number with this name.
template <typename T>
void TakeNumber(const std::map<std::string, double>& numbers, const char* name, T* field) {
  const auto found = numbers.find(name);
  if (found == numbers.end())
    throw std::invalid_argument(std::string("horovod_data's Python side gives no ") + name + ". Install it anew.");
  if constexpr (std::is_enum_v<T>)
    *field = static_cast<T>(static_cast<int>(found->second));
  else
    *field = static_cast<T>(found->second);
}

}  // namespace hvdata
