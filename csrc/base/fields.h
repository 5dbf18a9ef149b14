// SPDX-License-Identifier: Apache-2.0
// A struct as a list of FIELD(type, name, default). Python reads the same list as text.
#pragma once

#define HVDATA_MEMBER(type, name, value) type name = value;
#define HVDATA_DESCRIBE(type, name, value) #type " " #name ";"
