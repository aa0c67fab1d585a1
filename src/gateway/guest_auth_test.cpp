#include "gateway/guest_auth.hpp"

#include "domain/credential_profiles.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

TEST(GuestAuth, CarriersAreTakenOutOfHeadersAndQuery) {
  RequestHead head;
  head.fields = {{"Authorization", "x"}, {"COOKIE", "x"}, {"X-Api-Key", "x"}, {"Accept", "y"}};
  head.query = "a=1&api_key=x&Access%5FToken=x&b=2";
  strip_guest_auth(head);
  ASSERT_EQ(head.fields.size(), 1U);
  EXPECT_EQ(head.fields[0].name, "Accept");
  EXPECT_EQ(head.query, "a=1&b=2");
  head.query = "token=x";
  strip_guest_auth(head);
  EXPECT_FALSE(head.query);
}

TEST(GuestAuth, RewritesAreTakenOut) {
  RequestHead head;
  head.fields = {{"X-Original-URL", "/a"},
                 {"forwarded", "host=a"},
                 {"X-HTTP-Method-Override", "PUT"},
                 {"X-Other", "y"}};
  strip_rewrites(head);
  ASSERT_EQ(head.fields.size(), 1U);
  EXPECT_EQ(head.fields[0].name, "X-Other");
}

TEST(GuestAuth, MintingEndpointsAreKnownInEverySpelling) {
  for (std::string_view path : {"/user/keys",
                                "/user/keys/",
                                "/User/Keys",
                                "/user/%6beys",
                                "/user//keys",
                                "/./user/keys",
                                "/user%2fkeys"})
    EXPECT_TRUE(domain::mints_credentials("api.github.com", "POST", path)) << path;
  EXPECT_FALSE(domain::mints_credentials("api.github.com", "GET", "/user/keys"));
  EXPECT_FALSE(domain::mints_credentials("api.github.com", "POST", "/repos/a/b/issues"));
  EXPECT_FALSE(domain::mints_credentials("other.example", "POST", "/user/keys"));
}

}  // namespace
}  // namespace gateway
