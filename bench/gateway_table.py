"""The tables of a result of gateway.py, for docs/benchmarks.md (written by table.py) and for the terminal."""

NAMES = {"direct": "nothing between", "gateway": "space-gateway", "nginx": "nginx, only re-encrypting", "squid": "Squid, ssl-bump",
         "mitmproxy": "mitmproxy"}


def lines(document):
    host, mint, rules, change = document["host"], document["minting"], document["many_rules"], document["policy_change"]
    memory, ours = document["gateway"]["private_kib"], document["gateway"]
    out = [f"{document['at'][:10]}; {host['cores']} shared cores, {host['processor'].replace('(R)', '')}, kernel {host['kernel']}, load "
           f"{host['load_before']:.1f} before and {host['load_after']:.1f} after; programs of `{document['programs']}`; {document['seconds']} s for each load.", "",
           "Client, upstream and our broker on core 0, the proxy on core 1; who reads our decisions where there is room; TLS terminated and made anew.",
           "Ours with policy, injection of a credential through the broker and audit on; the others add the same header and write an access log. Requests of 1 KiB on 32",
           "kept connections, bytes by answers of 64 MiB on 2, latency on 1.", "",
           "| | requests/s, kept alive | MB/s | added p50 ms | added p99 ms |", "|---|---|---|---|---|"]
    direct = document["direct"]["one"]
    measured = {name: document[name] for name in NAMES if isinstance(document.get(name), dict)}
    for name, words in NAMES.items():
        one = measured.get(name)
        if one is None:
            out.append(f"| {words} | {document.get(name, 'not measured')} | | | |")
            continue
        failed = "; **some were refused**" if one["many"]["refused"] or one["many"]["socket_errors"] else ""
        out.append(f"| {words} | {one['many']['requests_per_s']:,.0f}{failed} | {one['bulk']['mb_per_s']:,.0f} | "
                   f"{one['one']['p50_ms'] - direct['p50_ms']:.2f} | {one['one']['p99_ms'] - direct['p99_ms']:.2f} |")
    out += ["", "| wanted | measured | |", "|---|---|---|"]

    def row(wanted, shown, good):
        out.append(f"| {wanted} | {shown} | {'reached' if good else '**not reached**'} |")

    for what, key, unit in (("requests/s", "many", "requests_per_s"), ("throughput", "bulk", "mb_per_s")):
        for name, times, words in (("squid", 1, "Squid's"), ("nginx", 0.6, "0.6 of nginx's"), ("mitmproxy", 5, "5 times mitmproxy's")):
            if name not in measured:
                continue
            quotient = ours[key][unit] / measured[name][key][unit]
            most = document["direct"][key][unit] / measured[name][key][unit]
            beyond = f" (with nothing between: {most:.2f})" if most < times else ""
            row(f"{what} at least {words}", f"{quotient:.2f} of it{beyond}", quotient >= times)
    p50, p99 = (ours["one"][p] - direct[p] for p in ("p50_ms", "p99_ms"))
    row("added latency p50 ≤ 1 ms, p99 ≤ 5 ms", f"{p50:.2f}, {p99:.2f}", p50 <= 1 and p99 <= 5)
    alone = mint["mint_ms"]
    row("minting a certificate ≤ 0.2 ms", f"{f'{alone:.2f}' if alone else 'not measured'}; a client's first handshake of a name took "
        f"{mint['difference_ms']:.2f} longer than its next ({mint['first_ms']:.2f}, {mint['again_ms']:.2f})", alone is not None and alone <= 0.2)
    row(f"a policy of {rules['rules']:,} rules decides in ≤ 20 µs: a request with it against one with a single rule",
        f"{(rules['p50_ms'] - rules['p50_ms_one_rule']) * 1000:+.0f} µs; in force in {rules['apply_ms']:.0f} ms",
        rules["p50_ms"] - rules["p50_ms_one_rule"] <= 0.02)
    row(f"a change in force on {change['connections']} live connections ≤ 50 ms", f"{change['ms']:.0f}; {change['closed_at_the_client']} closed at the client",
        change["ms"] <= 50 and change["closed_at_the_client"] == change["connections"])
    row("private memory ≤ 4 MiB idle", f"{memory['idle'] / 1024:.1f}, after the load {memory['after_load'] / 1024:.1f}", memory["idle"] <= 4096)
    return out
