#include "gateway/dialer.hpp"

#include <gtest/gtest.h>
#include <openssl/x509_vfy.h>

namespace gateway {
namespace {

Address address(std::string const& text) {
  AddressFilter::Network network{};
  EXPECT_TRUE(parse_network(text, network)) << text;
  return network.base;
}

TEST(Dialer, ANameThatHasIpv6AloneIsRefusedWithTheReason) {
  base::Error const last(base::Code::unavailable, "Network is unreachable");
  auto const why = [&](std::vector<Address> const& tried) {
    return why_not_reached(tried, last).message();
  };
  EXPECT_NE(why({address("2001:db8::1"), address("2001:db8::2")}).find("IPv6 addresses alone"),
            std::string::npos);
  EXPECT_EQ(why({address("192.0.2.1"), address("2001:db8::2")}), last.message());
  EXPECT_EQ(why({address("192.0.2.1")}), last.message());
  EXPECT_EQ(why_not_reached({address("2001:db8::1")}, last).code(), base::Code::unavailable);
}

TEST(Dialer, WhyTlsFailedIsAWordForMetrics) {
  auto const word = [](long verdict) {
    return tls_failure_of(
        base::Error(base::Code::unavailable,
                    fmt::format("TLS handshake: {}", X509_verify_cert_error_string(verdict))));
  };
  EXPECT_EQ(word(X509_V_ERR_CERT_HAS_EXPIRED), "certificate_expired");
  EXPECT_EQ(word(X509_V_ERR_CERT_NOT_YET_VALID), "certificate_not_yet_valid");
  EXPECT_EQ(word(X509_V_ERR_HOSTNAME_MISMATCH), "certificate_of_another_name");
  for (long const verdict : {X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
                             X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT,
                             X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN,
                             X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE,
                             X509_V_ERR_INVALID_CA})
    EXPECT_EQ(word(verdict), "certificate_untrusted") << verdict;
  auto const other = [](base::Code code, std::string text) {
    return tls_failure_of(base::Error(code, "TLS handshake: " + std::move(text)));
  };
  EXPECT_EQ(other(base::Code::unavailable, "sslv3 alert bad certificate"), "handshake");
  EXPECT_EQ(other(base::Code::unavailable, "wrong version number"), "handshake");
  EXPECT_EQ(other(base::Code::deadline_exceeded, "no answer in time"), "timeout");
}

}  // namespace
}  // namespace gateway
