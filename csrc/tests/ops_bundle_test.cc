// SPDX-License-Identifier: Apache-2.0
// A wrong bundle is an error and no crash.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "mail/share.h"
#include "ops/bundle.h"

namespace hvdata {

// bundle.cc needs only this of the engine.
Hooks& TheHooks() {
  static Hooks hooks;
  return hooks;
}

namespace {

using tensorflow::Tensor;

TEST(TakeTensors, OfNoBundleIsAnError) {
  std::vector<Tensor> tensors(1);
  const absl::Status status = TakeTensors(nullptr, &tensors);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(std::string(status.message()).find("a share came without its tensors"), std::string::npos)
      << status.message();
  EXPECT_EQ(tensors.size(), 1u) << "what was there stays";
}

TEST(TakeTensors, OfABundleWithAnErrorIsThatError) {
  auto bundle = std::make_shared<Bundle>();
  bundle->error = "component 0 is announced with a dtype that is none";
  std::vector<Tensor> tensors;
  EXPECT_EQ(std::string(TakeTensors(bundle, &tensors).message()), bundle->error);
}

TEST(TakeTensors, OfStringsThatAreNoneIsAnError) {
  auto bundle = std::make_shared<Bundle>();
  bundle->tensors.emplace_back(tensorflow::DT_STRING, tensorflow::TensorShape({3}));
  bundle->encoded.push_back({"no strings", nullptr});
  std::vector<Tensor> tensors;
  EXPECT_EQ(std::string(TakeTensors(bundle, &tensors).message()), "component 0 of a share is not a tensor of strings");
}

}  // namespace
}  // namespace hvdata
