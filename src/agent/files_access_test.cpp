#include "agent/files_access.hpp"

#include <gtest/gtest.h>

namespace agent {
namespace {

base::WallTime at(std::int64_t seconds) {
  return base::WallTime(std::chrono::seconds(seconds));
}

SignedRequest const read_request{FileOperation::read, "/home/user/a.txt", "", std::nullopt};

// Computed with the client library, release 2.21.1.
TEST(FileSignature, AgreesWithTheClients) {
  EXPECT_EQ(file_signature(read_request, "tok123"),
            "v1_byj2OB/vujgbES/1KAKCaR27E+9eOrB6PzeTnIL8L6M");
  EXPECT_EQ(
      file_signature({FileOperation::write, "/home/user/a.txt", "root", 1700000060}, "tok123"),
      "v1_OstgiRoPxiz8TrQFfkbZ4CUOOuqfxYR4dItoyfeQXTw");
}

TEST(FileAccess, TheHeaderDecidesWhenItIsThere) {
  base::Secret const token("tok123");
  auto const good = file_signature(read_request, "tok123");
  EXPECT_EQ(file_access_refused(token, "tok123", std::nullopt, read_request, at(0)), std::nullopt);
  EXPECT_EQ(file_access_refused(token, "tok124", good, read_request, at(0)),
            "access token present in header but does not match");
  EXPECT_EQ(file_access_refused(token, "tok12", good, read_request, at(0)),
            "access token present in header but does not match");
  EXPECT_EQ(file_access_refused(base::Secret(), "anything", std::nullopt, read_request, at(0)),
            std::nullopt);
}

TEST(FileAccess, ASignatureHoldsForWhatItCovers) {
  base::Secret const token("tok123");
  auto const good = file_signature(read_request, "tok123");
  EXPECT_EQ(file_access_refused(token, std::nullopt, good, read_request, at(0)), std::nullopt);
  EXPECT_EQ(file_access_refused(token, std::nullopt, std::nullopt, read_request, at(0)),
            "missing signature query parameter");
  auto other = read_request;
  other.operation = FileOperation::write;
  EXPECT_EQ(file_access_refused(token, std::nullopt, good, other, at(0)), "invalid signature");
  other = read_request;
  other.path = "/home/user/b.txt";
  EXPECT_EQ(file_access_refused(token, std::nullopt, good, other, at(0)), "invalid signature");
  other = read_request;
  other.username = "root";
  EXPECT_EQ(file_access_refused(token, std::nullopt, good, other, at(0)), "invalid signature");
  other = read_request;
  other.expiration = 10;  // an expiration that was added later
  EXPECT_EQ(file_access_refused(token, std::nullopt, good, other, at(0)), "invalid signature");
}

TEST(FileAccess, AnExpirationIsAboutTheSecond) {
  base::Secret const token("tok123");
  for (std::int64_t const expiration : {std::int64_t(1000), std::int64_t(0), std::int64_t(-120)}) {
    auto request = read_request;
    request.expiration = expiration;
    auto const signature = file_signature(request, "tok123");
    EXPECT_EQ(file_access_refused(token, std::nullopt, signature, request, at(expiration + 1)),
              "signature is already expired");
    EXPECT_EQ(file_access_refused(token, std::nullopt, signature, request, at(expiration)),
              std::nullopt);
  }
  // A wrong signature is told first, whatever its time.
  auto request = read_request;
  request.expiration = 1;
  EXPECT_EQ(file_access_refused(token, std::nullopt, "v1_x", request, at(99)), "invalid signature");
}

}  // namespace
}  // namespace agent
