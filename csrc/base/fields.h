// SPDX-License-Identifier: Apache-2.0
// A struct as a list of FIELD(type, name, default), which Python can read as text: so the two can't disagree.
#pragma once

#define HVDATA_MEMBER(type, name, value) type name = value;
#define HVDATA_DESCRIBE(type, name, value) #type " " #name ";"
