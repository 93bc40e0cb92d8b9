"""What a browser may load and run on a page: the style and the script that it was made with, and pictures inside it."""

import base64
import hashlib
import re

from posattn.explorer import document
from posattn.explorer.content import Content
from posattn.page_policy import policy


def hashed(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_a_policy_names_what_is_there_and_nothing_else():
    end = "; base-uri 'none'; form-action 'none'"
    assert policy("a") == f"default-src 'none'; style-src {hashed('a')}{end}"
    assert policy("a", "b") == f"default-src 'none'; style-src {hashed('a')}; script-src {hashed('b')}{end}"
    assert policy("ä", images=True) == f"default-src 'none'; style-src {hashed('ä')}; img-src data:{end}"


def test_the_explorer_has_the_policy_of_its_own_style_and_script():
    page = document(Content(), [], "nothing")
    (style,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy(style, script)}">' in page
