// SPDX-License-Identifier: Apache-2.0
// A struct as a list of FIELD(type, name, default), which Python can read as text: so the two can't disagree.
#ifndef HOROVOD_DATA_BASE_FIELDS_H_
#define HOROVOD_DATA_BASE_FIELDS_H_

#define HVDATA_MEMBER(type, name, value) type name = value;
#define HVDATA_DESCRIBE(type, name, value) #type " " #name ";"

#endif  // HOROVOD_DATA_BASE_FIELDS_H_
