#include "domain/template_name.hpp"

#include <gtest/gtest.h>

namespace domain {
namespace {

TEST(TemplateNames, AreSplitIntoNamespaceAliasAndTag) {
  EXPECT_EQ(parse_template_name("base").value(), (TemplateName{"", "base", "default"}));
  EXPECT_EQ(parse_template_name("base:v1.2").value(), (TemplateName{"", "base", "v1.2"}));
  EXPECT_EQ(parse_template_name("team/snap:default").value(),
            (TemplateName{"team", "snap", "default"}));
  EXPECT_EQ(parse_template_name("Team/My_Snap-1").value(),
            (TemplateName{"team", "my_snap-1", "default"}));
}

TEST(TemplateNames, RefusalsNameThePart) {
  auto const why = [](std::string_view text) {
    return parse_template_name(text).error().message();
  };
  EXPECT_EQ(why(""), "the template's name is empty");
  EXPECT_EQ(why("/x"), "the template's namespace is empty");
  EXPECT_EQ(why("x/"), "the template's name is empty");
  EXPECT_EQ(why("x:"), "the template's tag is empty");
  EXPECT_EQ(why(":x"), "the template's name is empty");
  EXPECT_EQ(why("a b"), "the template's name may hold a-z, 0-9, '-', '_' only");
  EXPECT_EQ(why("a:b:c"), "the template's tag may hold a-z, 0-9, '-', '_' and '.' only");
  EXPECT_EQ(why(std::string(129, 'a')), "the template's name is longer than 128 characters");
  for (auto const* text : {"a/b/c", "..", "a/../b", "\xc3\xa4", "a\n", "a%2f"}) {
    auto const refused = parse_template_name(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code(), base::Code::invalid_argument);
  }
  EXPECT_FALSE(parse_template_name(std::string_view("a\0b", 3)));
  EXPECT_TRUE(parse_template_name(std::string(128, 'a')));
}

TEST(TemplateNames, ATagMayNotLookLikeABuild) {
  EXPECT_FALSE(parse_tag("0190a3c4-9b1d-7e2f-8a3b-4c5d6e7f8091"));
  EXPECT_EQ(parse_tag("V1").value(), "v1");
  EXPECT_FALSE(parse_tag(":v1"));
  EXPECT_FALSE(parse_tag("v1:"));
}

TEST(TemplateNames, UuidsAndIdsAreToldApart) {
  EXPECT_TRUE(is_uuid("0190a3c4-9b1d-7e2f-8a3b-4c5d6e7f8091"));
  EXPECT_FALSE(is_uuid("0190a3c4-9b1d-7e2f-8a3b-4c5d6e7f809"));
  EXPECT_FALSE(is_uuid("0190a3c4-9b1d-7e2f-8a3b-4c5d6e7f809g"));
  EXPECT_FALSE(is_uuid("0190a3c499b1d-7e2f-8a3b-4c5d6e7f8091"));
  EXPECT_TRUE(is_template_id("abcdefghij0123456789"));
  EXPECT_FALSE(is_template_id("base"));
  EXPECT_FALSE(is_template_id("abcdefghij012345678-"));
}

TEST(SandboxIds, ComeWithOrWithoutTheLegacySuffix) {
  EXPECT_EQ(sandbox_id_in("iabcdefghij0123456789"), "iabcdefghij0123456789");
  EXPECT_EQ(sandbox_id_in("iabcdefghij0123456789-6532622b"), "iabcdefghij0123456789");
  for (auto const* text : {"",
                           "-",
                           "x",
                           "Iabcdefghij0123456789",
                           "iabcdefghij012345678",
                           "iabcdefghij01234567890",
                           "iabcdefghij012345678.",
                           "../../etc/passwd"}) {
    EXPECT_EQ(sandbox_id_in(text), "") << text;
  }
}

}  // namespace
}  // namespace domain
