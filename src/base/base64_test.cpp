#include "base/base64.hpp"

#include <gtest/gtest.h>

namespace base {
namespace {

TEST(Base64, ReadsWhatItWrites) {
  std::string all;
  for (int i = 0; i < 256; ++i)
    all.push_back(static_cast<char>(i));
  for (std::size_t size = 0; size <= all.size(); ++size)
    EXPECT_EQ(base64_decoded(base64_of(all.substr(0, size))), all.substr(0, size));
  EXPECT_EQ(base64_of("hi"), "aGk=");
  EXPECT_EQ(base64_of(""), "");
}

TEST(Base64, TakesBothAlphabetsAndRefusesWhatIsNone) {
  EXPECT_EQ(base64_decoded("aGk"), "hi");
  EXPECT_EQ(base64_decoded("_-8"), base64_decoded("/+8="));
  EXPECT_EQ(base64_decoded(""), "");
  for (auto const* bad :
       {"a", "aGk=a", "a b=", "aGk==", "=", "====", "aG\n=", "YQ=", "Y*==", "=AAA", "A=AA", "\xff"})
    EXPECT_FALSE(base64_decoded(bad)) << bad;
}

}  // namespace
}  // namespace base
