"""Templates that would take all time, or all memory, each in a way of its own."""

_DOUBLE = "{% set ns = namespace(x=BASE) %}{% for i in range(70) %}{% set ns.x = STEP %}{% endfor %}"


def doubled(base: str, step: str, use: str = "") -> str:
    """A template that doubles something seventy times."""
    return _DOUBLE.replace("BASE", base).replace("STEP", step) + use


LOOPS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) if range(99999)|sum < 0 %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "{% for x in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "{% set x = range(99999)|list %}{% for i in range(99999) %}{% set y = x|sort|reverse|list %}{% endfor %}",
    "{{ range(99999)|map('string')|map('upper')|select|list|join('')|length * range(10**9)|length }}",
    "{% macro c() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call c() %}" * 15
    + "x" * 9999
    + "{% endcall %}" * 15,
]
TEXTS = [
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ ('a'|safe) * 10**9 }}",
    "{{ [1] * 10**9 }}",
    doubled("'aaaa'", "ns.x ~ ns.x"),
    doubled("'aaaa'", "ns.x + ns.x"),
    doubled("'aaaa'", "[ns.x, ns.x]|join"),
    doubled("'aaaa'", "(ns.x, ns.x)|join('')"),
    doubled("'aaaa'", "'%s%s' % (ns.x, ns.x)"),
    doubled("'aaaa'", "'{0}{0}'.format(ns.x)"),
    doubled("'aaaa'", "'%s%s'|format(ns.x, ns.x)"),
    doubled("'aaaa'", "ns.x|replace('a', 'aa')"),
    doubled("'aaaa'", "ns.x.replace('a', 'aa')"),
    doubled("[1]", "ns.x + ns.x"),
    doubled("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
    doubled("[1]", "[ns.x, ns.x]", "{{ ns.x|tojson }}"),
    doubled("[1]", "[ns.x, ns.x]", "{{ ns.x|string|length }}"),
    doubled("[1]", "[ns.x, ns.x]", "{{ ns.x|pprint }}"),
    doubled("[1]", "[ns.x, ns.x]", "{{ (ns.x ~ '')|length }}"),
    doubled("[1]", "{'a': ns.x, 'b': ns.x}", "{{ ns.x|tojson }}"),
    doubled("[1]", "dict(a=ns.x, b=ns.x)", "{{ ns.x|tojson }}"),
    doubled("[1]", "dict(a=ns.x, b=ns.x)", "{{ ns.x }}"),
    "{{ range(10**9) }}",
    "{{ range(10**9)|list }}",
    "{{ 'a'|center(10**9) }}",
    "{% filter center(10**9) %}a{% endfilter %}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'['center'](10**9) }}",
    "{% set f = 'a'.center %}{{ f(10**9) }}",
    "{{ ('a'|attr('center'))(10**9) }}",
    "{{ ('a'|safe).center(10**9) }}",
    "{{ ['a']|map('center', 10**9)|list }}",
    "{{ 'a'.ljust(10**9) }}{{ 'a'.rjust(10**9) }}{{ 'a'.zfill(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ '{x:>{y}}'.format_map({'x': 1, 'y': 10**9}) }}",
    "{{ range(99999)|join('a' * 99999) }}",
    "{{ ('a' * 99999).join(range(99999)|map('string')) }}",
    "{{ ('\\t' * 1000000).expandtabs(1000000) }}",
    "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "{{ 'a'|indent(10**9, true) }}",
    "{{ messages|tojson(indent=10**9) }}",
    "{{ messages|tojson(separators=('a' * 4000000, 'b' * 4000000)) }}",
    "{{ []|batch(10**9, 'x')|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ ('a ' * 100000)|wordwrap(1, wrapstring='b' * 100000) }}",
    "{{ 1.5|round(10**9) }}",
    "{{ (1).to_bytes(10**9, 'big') }}",
    "{{ (9 ** 9999) ** 99999 }}",
    doubled("3", "ns.x * ns.x"),
    "{{ lipsum(n=10**7) }}",
    "{{ dict.fromkeys(range(99999), 'x' * 100000) }}",
    "{{ (['a' * 4000000] * 1000)|join }}",
    "{{ ('<a>' * 1000000)|striptags }}",
    "{{ ('a' * 1000000).rfind('b' + 'a' * 500000) }}",
    "{% for i in range(99999) %}{{ 'x' * 5000 }}{% endfor %}",
    "{% for i in range(99999) %}" + "y" * 5000 + "{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}",
    "{{ " + "~".join(["'a' * 4000000"] * 60) + " }}",
    "{{ " + "+".join(["'a' * 4000000"] * 60) + " }}",
]


def compared(use: str, base: str = "[1]", step: str = "[ns.x, ns.x]") -> str:
    """A template that uses two equal values, `a` and `b`, in which each part is there many times."""
    return doubled(base, step, "{% set a = ns.x %}") + doubled(base, step, "{% set b = ns.x %}{{ " + use + " }}")


COMPARISONS = [
    compared("a == b"),
    compared("a < b"),
    compared("a in [b]"),
    compared("a is eq(b)"),
    compared("a is in([b])"),
    compared("[a].index(b)"),
    compared("[a].count(b)"),
    compared("[a]|select('eq', b)|list"),
    compared("[{'x': a}]|rejectattr('x', 'ne', b)|list"),
    compared("[a, b]|map('list')|sort|length"),
    compared("[a, b]|map('list')|max|length"),
    compared("a|trim|length"),
    compared("a.items() == b.items()", step="dict(a=ns.x, b=ns.x)"),
    compared("{a: 1}|length", "(1,)", "(ns.x, ns.x)"),
    compared("{'a': 1}[a]", "(1,)", "(ns.x, ns.x)"),
    compared("{'a': 1}.get(a)", "(1,)", "(ns.x, ns.x)"),
    compared("dict([(a, 1)])|length", "(1,)", "(ns.x, ns.x)"),
    compared("[a]|map('list')|unique|list|length", "(1,)", "(ns.x, ns.x)"),
    doubled("[1]", "[ns.x, ns.x]", "{% for each in [ns.x] * 2 %}{{ loop.changed(each) }}{% endfor %}"),
]
HOSTILE = [*LOOPS, *TEXTS, *COMPARISONS]
